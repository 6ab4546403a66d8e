"""What differs between two JSON values, in words: which keys, and both values of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from sessiond.domain.canonical import JsonValue, canonical_json

#: So many are told, in so many characters, that a ticket has room for them; of the rest, how many.
_MOST: Final = 3
_MOST_CHARS_OF_ALL: Final = 200
_MOST_CHARS: Final = 40
_MOST_PATH_CHARS: Final = 60
#: What lies deeper is one value.
_DEEPEST: Final = 8
_NOTHING: Final = "nothing"

_Inside: TypeAlias = "Mapping[str, JsonValue]"


@dataclass(frozen=True)
class _Difference:
    path: tuple[str, ...]
    stored: str
    live: str

    @property
    def in_words(self) -> str:
        path = ".".join(self.path)
        shown = path if len(path) <= _MOST_PATH_CHARS else f"…{path[1 - _MOST_PATH_CHARS :]}"
        return f"{shown} stored {_cut(self.stored)}, live {_cut(self.live)}"

    @property
    def same(self) -> tuple[str, str, str]:
        """Equal for what is told twice: a text model's settings are also inside those around it."""
        return self.path[-1], self.stored, self.live

    @property
    def order(self) -> tuple[bool, tuple[str, ...]]:
        # A digest tells nobody anything, so it comes last.
        return self.path[-1].endswith("digest"), self.path


def differing(stored: JsonValue, live: JsonValue) -> str:
    """Return the keys that differ inside two mappings, or lists, with both values of each.

    Only some of many are told, and long values are cut. Empty where there are no keys to tell.
    """
    found: dict[tuple[str, str, str], _Difference] = {}
    for one in _differences(stored, live, ()):
        if one.path:
            found.setdefault(one.same, one)
    ordered = sorted(found.values(), key=lambda one: one.order)
    told = [one.in_words for one in ordered[:_MOST]]
    while len("; ".join(told)) > _MOST_CHARS_OF_ALL:
        told.pop()
    more = len(ordered) - len(told)
    return "; ".join([*told, f"and {more} more"] if more else told)


def _differences(
    stored: JsonValue, live: JsonValue, path: tuple[str, ...]
) -> Iterator[_Difference]:
    if canonical_json(stored) == canonical_json(live):
        return
    inside = _by_key(stored, live)
    if inside is None or len(path) == _DEEPEST:
        yield _Difference(path, _json(stored), _json(live))
        return
    ours, theirs = inside
    for key in sorted({*ours, *theirs}):
        if key in ours and key in theirs:
            yield from _differences(ours[key], theirs[key], (*path, key))
        else:
            sides = (_json(side[key]) if key in side else _NOTHING for side in inside)
            yield _Difference((*path, key), *sides)


def _by_key(stored: JsonValue, live: JsonValue) -> tuple[_Inside, _Inside] | None:
    """Return what is inside of two mappings or of two lists; ``None``: they are something else."""
    if isinstance(stored, Mapping) and isinstance(live, Mapping):
        return stored, live
    if isinstance(stored, list) and isinstance(live, list):
        one, other = (
            {str(place): item for place, item in enumerate(side)} for side in (stored, live)
        )
        return one, other
    return None


def _json(value: JsonValue) -> str:
    return canonical_json(value).decode()


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 1]}…"
