"""The connector's part of a vLLM answer, read with suspicion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeGuard

from sessiond.domain.errors import (
    EngineRefusedError,
    EngineUnreachableError,
    EngineWithoutConnectorError,
)
from sessiond.domain.heads import TurnSplit
from sessiond.domain.reasons import Cause
from sessiond.domain.tickets import ANSWER_PARAM
from sessiond.domain.timing import TurnTiming, timing_of

if TYPE_CHECKING:
    from sessiond.domain.canonical import JsonValue


_ABORTED: Final = "The engine aborted the request: it was paused, put to sleep or is ending."


@dataclass(frozen=True)
class Answer:
    """What one ticketed request brought back."""

    ok: bool
    causes: tuple[Cause, ...]
    cached_tokens: int | None  #: vLLM's own count; ``None`` where it does not tell
    fields: Mapping[str, JsonValue]

    def number(self, name: str) -> int:
        """Return a count that the connector reported.

        :raises EngineRefusedError: it is missing, or no count.
        """
        value = self.fields.get(name)
        if not _is_count(value):
            raise EngineRefusedError(f"The engine's answer has no usable '{name}'.")
        return value

    def seconds(self, name: str) -> float:
        """Return a duration that the connector reported; 0 where it did not."""
        value = self.fields.get(name)
        return float(value) if isinstance(value, (int, float)) else 0.0

    def flag(self, name: str) -> bool:
        """Return whether the connector reported *name* as true."""
        return self.fields.get(name) is True

    @property
    def split(self) -> TurnSplit:
        """Where the prompt's tokens came from; all zero where the connector does not tell."""
        value = self.fields.get("split")
        if not isinstance(value, Mapping):
            return TurnSplit()
        known = {name: value.get(name) for name in TurnSplit.__dataclass_fields__}
        return TurnSplit(**{name: count for name, count in known.items() if _is_count(count)})

    @property
    def timing(self) -> TurnTiming | None:
        """What the request's stages took; ``None`` where the connector does not tell."""
        return timing_of(self.fields.get("timing"))


def read_answer(body: object) -> Answer:
    """Return the connector's part of a completion's *body*.

    :raises EngineWithoutConnectorError: there is none.
    :raises EngineUnreachableError: the engine aborted the request, and so told nothing.
    :raises EngineRefusedError: *body* has not the form of a completion.
    """
    if not isinstance(body, Mapping):
        raise EngineRefusedError("The engine's answer is no JSON object.")
    params = body.get("kv_transfer_params")
    ours = params.get(ANSWER_PARAM) if isinstance(params, Mapping) else None
    if not isinstance(ours, Mapping):
        if _is_aborted(body):
            raise EngineUnreachableError(_ABORTED)
        raise EngineWithoutConnectorError
    return Answer(
        ok=ours.get("ok") is True,
        causes=_causes(ours.get("causes")),
        cached_tokens=_cached_tokens(body.get("usage")),
        fields=ours,
    )


def _is_aborted(body: Mapping[str, object]) -> bool:
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return isinstance(first, Mapping) and first.get("finish_reason") == "abort"


def _causes(value: object) -> tuple[Cause, ...]:
    if not isinstance(value, (list, tuple)):
        return ()
    return tuple(Cause.from_json(cause) for cause in value if isinstance(cause, Mapping))


def _cached_tokens(usage: object) -> int | None:
    details = usage.get("prompt_tokens_details") if isinstance(usage, Mapping) else None
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    return cached if _is_count(cached) else None


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
