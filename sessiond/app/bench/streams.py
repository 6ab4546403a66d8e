"""Other requests: streams that decode token after token, and the times between them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx

from sessiond.testing.stack import SERVED_NAME

_TIMEOUT_S = 120.0
#: None ends before its block does.
_MAX_TOKENS = 4000


@dataclass
class Stamps:
    """When tokens arrived, on the client's clock."""

    arrived_s: list[float] = field(default_factory=list)

    def gaps_s(self, begin_s: float, end_s: float) -> list[float]:
        """Return the times between tokens that lie within a period."""
        inside = [stamp for stamp in self.arrived_s if begin_s <= stamp <= end_s]
        return [after - before for before, after in pairwise(inside)]


class Stream:
    """One request that decodes until it is stopped."""

    def __init__(self, base_url: str, prompt: Sequence[int]) -> None:
        self.stamps = Stamps()
        self._base_url = base_url
        self._prompt = list(prompt)
        self._stopped = threading.Event()
        self._flows = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait_until_flowing(self) -> None:
        """Return when tokens come.

        :raises RuntimeError: none came
        """
        if not self._flows.wait(_TIMEOUT_S):
            raise RuntimeError(f"A stream gives no tokens: {self._failure}.")

    def stop(self) -> None:
        """End the request.

        :raises RuntimeError: it had ended by itself
        """
        self._stopped.set()
        self._thread.join(_TIMEOUT_S)
        if self._failure is not None:
            raise RuntimeError("A stream broke.") from self._failure

    def _run(self) -> None:
        try:
            self._read()
        except (httpx.HTTPError, ValueError) as error:
            self._failure = error

    def _read(self) -> None:
        body = {
            "model": SERVED_NAME,
            "prompt": self._prompt,
            "max_tokens": _MAX_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "cache_salt": "streams",
        }
        url = f"{self._base_url}/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=_TIMEOUT_S) as answer:
            answer.raise_for_status()
            for event in _events(answer):
                self.stamps.arrived_s.append(event)
                if len(self.stamps.arrived_s) > 1:
                    self._flows.set()
                if self._stopped.is_set():
                    return
        raise ValueError("The stream ended before its block.")


def _events(answer: httpx.Response) -> Iterator[float]:
    """Yield when each event with tokens came."""
    for line in answer.iter_lines():
        now_s = time.perf_counter()
        data = line.removeprefix("data: ")
        if data in (line, "[DONE]"):
            continue
        event: dict[str, Any] = json.loads(data)
        if event.get("choices"):
            yield now_s


@contextmanager
def flowing(base_url: str, prompts: Sequence[Sequence[int]]) -> Iterator[list[Stamps]]:
    """Have streams decode meanwhile, one for each prompt."""
    streams = [Stream(base_url, prompt) for prompt in prompts]
    try:
        for stream in streams:
            stream.wait_until_flowing()
        yield [stream.stamps for stream in streams]
    finally:
        for stream in streams:
            stream.stop()
