"""What arrives while others decode: a session's turn from VRAM or from disk, or its suspend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sessiond.domain.tickets import ANSWER_PARAM
from sessiond.testing.agent import Agent


class UnexpectedPathError(RuntimeError):
    """An arrival was not served the way that was to be measured."""


class Arrival:
    """One session whose KV is in VRAM after :meth:`begin`.

    :param prompt: whole chunks and one token more, so that nothing but that one is computed
    """

    def __init__(self, name: str, daemon_port: int, engine_port: int, prompt: list[int]) -> None:
        self._agent = Agent(name, daemon_port, engine_port)
        self._name = name
        self._prompt = prompt

    def begin(self) -> None:
        """Create the session and take its first turn."""
        self._agent.create_session()
        self._turn()

    def from_vram(self) -> None:
        """Take a turn whose KV is in VRAM."""
        split = self._turn()
        self._require(split["vram_tokens"] == len(self._prompt) - 1, split)

    def suspend(self) -> None:
        """Suspend the session, for the first time."""
        report = self._agent.suspend()
        snapshot = report.get("snapshot") or {}
        self._require(snapshot.get("tokens_restorable") == len(self._prompt) - 1, report)

    def from_disk(self) -> None:
        """Take a turn whose KV is on disk only."""
        split = self._turn()
        self._require(split["disk_tokens"] == len(self._prompt) - 1, split)

    def end(self) -> None:
        """Delete the session."""
        self._agent.try_call("DELETE", f"/v1/sessions/{self._name}")
        self._agent.close()

    def _turn(self) -> Mapping[str, Any]:
        ticket = self._agent.ticket()
        answer = self._agent.complete(
            self._prompt,
            cache_salt=ticket["cache_salt"],
            kv_transfer_params=ticket["kv_transfer_params"],
        )
        split: Mapping[str, Any] = answer["kv_transfer_params"][ANSWER_PARAM]["split"]
        return split

    def _require(self, holds: bool, seen: object) -> None:  # noqa: FBT001 - reads as a sentence
        if not holds:
            raise UnexpectedPathError(f"{self._name} was served another way: {seen}.")


def prompts(tokens: Sequence[int], length: int, first: int, count: int) -> list[list[int]]:
    """Return different pieces of a text; no two of the same run begin alike.

    :param first: how many pieces were taken before
    """
    room = len(tokens) - length
    starts = [place * _STRIDE % room for place in range(first, first + count)]
    return [list(tokens[start : start + length]) for start in starts]


_STRIDE = 997
