"""JSON objects of which some members are changed, and all others stay as they were written.

A proxy that parses a body and writes it anew loses what its parser cannot hold: numbers beyond
doubles, repeated names, the way in which a character was escaped. Here the members are found by
the parser and cut out as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from sessiond.domain.errors import InvalidInputError

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True)
class Member:
    """One member of an object."""

    name: str
    value: object
    begin: int  #: where its name begins in the text
    end: int  #: where its value ends


@dataclass(frozen=True)
class JsonBody:
    """A JSON object as it was sent."""

    text: str = field(repr=False)
    members: tuple[Member, ...] = field(repr=False)

    def get(self, name: str) -> object:
        """Return a member's value, of several the last one's, as every JSON parser of Python's.

        ``None`` also if there is no such member.
        """
        return next((one.value for one in reversed(self.members) if one.name == name), None)

    def changed(self, values: Mapping[str, object], dropped: Container[str] = ()) -> bytes:
        """Return the object in UTF-8, with these members set and those dropped.

        A member that is set keeps its place, or comes last. Every other one is the text that it
        was.
        """
        missing = dict(values)
        parts: list[str] = []
        for member in self.members:
            if member.name in values:
                if member.name in missing:
                    parts.append(_written(member.name, missing.pop(member.name)))
            elif member.name not in dropped:
                parts.append(self.text[member.begin : member.end])
        parts += [_written(name, value) for name, value in missing.items()]
        return f"{{{','.join(parts)}}}".encode("utf-8", "surrogatepass")


def parse_body(data: bytes) -> JsonBody:
    """Return the object that *data* holds, read exactly as ``json.loads`` reads it.

    :raises InvalidInputError: it is no JSON object.
    """
    try:
        text = data.decode(json.detect_encoding(data), "surrogatepass")
        return JsonBody(text, tuple(_members(text)))
    except RecursionError as error:
        raise InvalidInputError("The request's body is nested too deeply.") from error
    except ValueError as error:  # among them: it is no text, it is no JSON
        raise InvalidInputError(f"The request's body is no JSON object: {_why(error)}") from error


def _members(text: str) -> list[Member]:
    found: list[Member] = []
    at = _expect(text, "{", _space(text, 0))
    if text[at : at + 1] != "}":
        while True:
            begin = at
            if text[at : at + 1] != '"':
                raise json.JSONDecodeError("Expecting a name in double quotes", text, at)
            name, at = _DECODER.raw_decode(text, at)
            at = _expect(text, ":", _space(text, at))
            value, end = _DECODER.raw_decode(text, at)
            found.append(Member(name, value, begin, end))
            at = _space(text, end)
            if text[at : at + 1] != ",":
                break
            at = _space(text, at + 1)
    at = _expect(text, "}", at)
    if at != len(text):
        raise json.JSONDecodeError("Extra data", text, at)
    return found


def _expect(text: str, mark: str, at: int) -> int:
    """Return the next place after *mark* and the space behind it."""
    if text[at : at + 1] != mark:
        raise json.JSONDecodeError(f"Expecting {mark!r}", text, at)
    return _space(text, at + 1)


def _space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None  # it matches nothing, too
    return match.end()


def _why(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.lower()} at character {error.pos}."
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is no UTF-8."
    return "it has a number that is too long."


def _written(name: str, value: object) -> str:
    return f"{json.dumps(name)}:{json.dumps(value)}"
