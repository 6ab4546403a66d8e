"""The agent: talks to sessiond for its session, and to vLLM for its turns."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from sessiond.testing.stack import SERVED_NAME

_TIMEOUT_S = 300.0
ChatMessages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Turn:
    """One streamed turn, as its client saw it."""

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    ttft_s: float
    cached_tokens: int  #: as vLLM reports it


class Agent:
    """An agent with one session.

    :ivar model: the name under which the engine serves its model
    """

    def __init__(self, session_id: str, daemon_port: int, engine_port: int) -> None:
        self.session_id = session_id
        self.model = SERVED_NAME
        self._ports = daemon_port, engine_port
        self._daemon = httpx.Client(base_url=f"http://127.0.0.1:{daemon_port}", timeout=_TIMEOUT_S)
        self._engine = httpx.Client(base_url=f"http://127.0.0.1:{engine_port}", timeout=_TIMEOUT_S)

    def close(self) -> None:
        """Close the connections."""
        self._daemon.close()
        self._engine.close()

    def create_session(self, model: str = "") -> None:
        """Create the session, for engines that serve *model* (empty: any)."""
        self._call("POST", "/v1/sessions", {"session_id": self.session_id, "model": model})

    def fork(self, session_id: str) -> Agent:
        """Return another agent, whose session is a fork of this one's newest snapshot."""
        self._call("POST", f"/v1/sessions/{self.session_id}/fork", {"session_id": session_id})
        return Agent(session_id, *self._ports)

    def ticket(self, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return a ticket for one turn: what goes into the request, and the plan."""
        return self._call("POST", f"/v1/sessions/{self.session_id}/ticket", body)

    def show(self) -> dict[str, Any]:
        """Return what sessiond shows of the session."""
        return self._call("GET", f"/v1/sessions/{self.session_id}")

    def show_when(self, found: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return what sessiond shows as soon as that is *found*, or after 20 s.

        What a turn left is written down by another process, after its answer.
        """
        deadline_s = time.monotonic() + 20
        while not found(shown := self.show()) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return shown

    def events(self) -> list[dict[str, Any]]:
        """Return the session's audit trail, oldest first."""
        return list(self._call("GET", f"/v1/sessions/{self.session_id}/events")["events"])

    def suspend(self) -> dict[str, Any]:
        """Suspend the session and return the report."""
        return self._call("POST", f"/v1/sessions/{self.session_id}/suspend")

    def resume(self) -> dict[str, Any]:
        """Resume the session and return the report."""
        return self._call("POST", f"/v1/sessions/{self.session_id}/resume")

    def count_tokens(self, messages: ChatMessages) -> int:
        """Return how many tokens the messages become."""
        answer = self._engine.post(
            "/tokenize", json={"model": self.model, "messages": list(messages)}
        )
        return int(answer.raise_for_status().json()["count"])

    def turn(
        self,
        messages: ChatMessages,
        *,
        tokens: int,
        cache_salt: str,
        kv_transfer_params: Mapping[str, Any] | None = None,
    ) -> Turn:
        """Take one greedy turn of exactly *tokens* tokens, streamed."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_salt": cache_salt,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        if kv_transfer_params is not None:
            body["kv_transfer_params"] = kv_transfer_params
        began_s = time.perf_counter()
        collector = _Collector(began_s)
        with self._engine.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != httpx.codes.OK:
                raise RuntimeError(f"vLLM answers {answer.status_code}: {answer.read()!r}")
            for event in _events(answer):
                collector.add(event)
        return collector.turn()

    def ticketed_turn(self, messages: ChatMessages, *, tokens: int) -> Turn:
        """Take a turn of the session."""
        ticket = self.ticket()
        return self.turn(
            messages,
            tokens=tokens,
            cache_salt=ticket["cache_salt"],
            kv_transfer_params=ticket["kv_transfer_params"],
        )

    def complete(self, prompt: str | Sequence[int], **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - any field of vLLM
        """Complete text or token ids with vLLM, not streamed, and return its whole answer."""
        body = {
            "model": self.model,
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "max_tokens": 1,
            "temperature": 0,
            **fields,
        }
        return self._ask("/v1/completions", body)

    def chat(self, messages: ChatMessages, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - any field of vLLM
        """Complete messages with vLLM, greedily and not streamed, and return its whole answer."""
        body = {
            "model": self.model,
            "messages": list(messages),
            "temperature": 0,
            "return_token_ids": True,
            **fields,
        }
        return self._ask("/v1/chat/completions", body)

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of *text*, without any template."""
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        return list(self._ask("/tokenize", body)["tokens"])

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of *tokens*."""
        return str(
            self._ask("/detokenize", {"model": self.model, "tokens": list(tokens)})["prompt"]
        )

    def _ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        answer = self._engine.post(path, json=body)
        if answer.is_error:
            raise RuntimeError(f"vLLM answers {answer.status_code}: {answer.text}")
        value: dict[str, Any] = answer.json()
        return value

    def try_call(self, method: str, path: str, body: object = None) -> httpx.Response:
        """Call sessiond and return whatever it answers."""
        return self._daemon.request(method, path, json=body)

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        answer = self._daemon.request(method, path, json=body)
        if answer.is_error:
            raise RuntimeError(f"sessiond answers {answer.status_code}: {answer.text}")
        value: dict[str, Any] = answer.json()
        return value


class _Collector:
    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._ttft_s = 0.0
        self._prompt_token_ids: tuple[int, ...] = ()
        self._token_ids: list[int] = []
        self._text: list[str] = []
        self._cached_tokens = 0

    def add(self, event: Mapping[str, Any]) -> None:
        if event.get("prompt_token_ids"):
            self._prompt_token_ids = tuple(event["prompt_token_ids"])
        for choice in event["choices"]:
            if choice.get("token_ids"):
                self._ttft_s = self._ttft_s or time.perf_counter() - self._began_s
                self._token_ids.extend(choice["token_ids"])
            self._text.append(choice["delta"].get("content") or "")
        usage = event.get("usage")
        if usage:
            self._cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]

    def turn(self) -> Turn:
        return Turn(
            prompt_token_ids=self._prompt_token_ids,
            token_ids=tuple(self._token_ids),
            text="".join(self._text),
            ttft_s=self._ttft_s,
            cached_tokens=self._cached_tokens,
        )


def _events(answer: httpx.Response) -> Iterator[Mapping[str, Any]]:
    for line in answer.iter_lines():
        data = line.removeprefix("data: ")
        if data not in (line, "[DONE]"):
            yield json.loads(data)
