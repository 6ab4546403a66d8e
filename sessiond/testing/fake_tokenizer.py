"""A small tokenizer that, like a real one, has several ways to spell the same text.

A letter is a token and so is each pair of letters. Text is made into pairs from the left; a
model may as well have sampled single letters. Messages end with a special token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sessiond.domain.tokens import TokenIds, token_ids

START, END = 1, 2
_SPECIAL = {START: "<|start|>", END: "<|end|>"}
_FIRST_PAIR = 1000
_LETTERS = 128


def encode(text: str) -> TokenIds[int]:
    """Return the tokens of *text* (ASCII), special ones included."""
    pattern = "|".join(map(re.escape, _SPECIAL.values()))
    parts = re.split(f"({pattern})", text)
    known = {name: token for token, name in _SPECIAL.items()}
    tokens: list[int] = []
    for part in parts:
        tokens += [known[part]] if part in known else _pairs(part)
    return token_ids(tokens)


def spell(text: str) -> TokenIds[int]:
    """Return the tokens of *text* letter by letter."""
    return token_ids(map(ord, text))


def decode(tokens: Sequence[int]) -> str:
    """Return the text of *tokens*."""
    return "".join(map(_text, tokens))


def render(messages: Sequence[Mapping[str, object]]) -> TokenIds[int]:
    """Return the prompt of a chat, with the begin of the reply."""
    said = (f"<|start|>{one['role']}:{one['content']}<|end|>" for one in messages)
    return encode("".join(said) + "<|start|>assistant:")


def _pairs(text: str) -> list[int]:
    pairs = [text[at : at + 2] for at in range(0, len(text), 2)]
    return [
        _FIRST_PAIR + _LETTERS * ord(pair[0]) + ord(pair[1]) if len(pair) == 2 else ord(pair)
        for pair in pairs
    ]


def _text(token: int) -> str:
    if token < _FIRST_PAIR:
        return _SPECIAL.get(token) or chr(token)
    return chr((token - _FIRST_PAIR) // _LETTERS) + chr((token - _FIRST_PAIR) % _LETTERS)
