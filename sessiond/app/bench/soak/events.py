"""What a chat completion told, streamed or not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

UNKNOWN: Final = "unknown"
_DATA, _COMMENT, _DONE = "data: ", ": sessiond ", "[DONE]"


@dataclass
class Heard:
    """An answer as far as it came."""

    prompt: tuple[int, ...] = ()
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    outcome: str = UNKNOWN  #: what became of the turn's context
    ended: bool = False  #: it came to its own end
    _failed: bool = field(default=False, repr=False)  #: the engine told an error in its midst

    def hear(self, line: str) -> None:
        """Take one line of a stream.

        :raises ValueError: it has not the form of one.
        """
        if line.startswith(_COMMENT):
            self.outcome = str(json.loads(line.removeprefix(_COMMENT))["outcome"])
        elif line.startswith(_DATA):
            data = line.removeprefix(_DATA)
            if data == _DONE:
                self.ended = not self._failed
            else:
                self._add(json.loads(data), "delta")

    def take(self, body: Mapping[str, Any]) -> None:
        """Take a whole answer, which is not streamed."""
        self._add(body, "message")
        self.ended = bool(body.get("choices"))

    def _add(self, told: Mapping[str, Any], part: str) -> None:
        self._failed = self._failed or "error" in told
        if told.get("prompt_token_ids"):
            self.prompt = tuple(told["prompt_token_ids"])
        for choice in told.get("choices") or ():
            self.tokens += choice.get("token_ids") or ()
            self.text.append(choice[part].get("content") or "")
            probable = (choice.get("logprobs") or {}).get("content") or ()
            self.logprobs += (one["logprob"] for one in probable)
