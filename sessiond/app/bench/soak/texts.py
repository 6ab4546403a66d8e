"""What the agents of a soak talk about: source code, a different piece in each message."""

from __future__ import annotations

from typing import Final

from sessiond.testing.texts import Messages, real_text

_CHARS: Final = 80_000
_OPENING_CHARS: Final = 1_300
_QUESTION_CHARS: Final = 240
#: The same for all agents: sessions share what their prompts begin with.
_RULES: Final = "You are a careful reader of source code. " + "Answer in short sentences. " * 16


def opening(name: str, place: float) -> Messages:
    """Return a conversation's first messages: about 420 tokens, the first 110 always the same.

    :param place: of its piece of the text, from 0 to 1
    """
    text = f"This is {name}. What does this do?\n{_piece(place, _OPENING_CHARS)}"
    return [{"role": "system", "content": _RULES}, {"role": "user", "content": text}]


def question(place: float) -> str:
    """Return what is asked next, about 80 tokens."""
    return f"And what about this?\n{_piece(place, _QUESTION_CHARS)}"


def _piece(place: float, chars: int) -> str:
    start = int(place * (_CHARS - chars))
    return real_text(_CHARS)[start : start + chars]
