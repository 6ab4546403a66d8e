"""Real text for prompts: source files of the standard library."""

from __future__ import annotations

import argparse
import asyncio.base_events
from collections.abc import Sequence
from pathlib import Path

_FILES = (asyncio.base_events.__file__, argparse.__file__)
#: Of the demo model's tokenizer on this text; good for aiming, not for checking.
_CHARS_PER_TOKEN = 4

Messages = Sequence[dict[str, str]]


def real_text(chars: int) -> str:
    """Return so many characters of source code."""
    return "".join(Path(path).read_text() for path in _FILES)[:chars]


def opening(name: str, about_tokens: int) -> Messages:
    """Return a conversation's first message, about this long; *name* makes it unique."""
    start = f"This is the conversation {name}. Here is a source file.\n"
    return [{"role": "user", "content": start + real_text(about_tokens * _CHARS_PER_TOKEN)}]


def continued(before: Messages, reply: str, question: str = "What else does it do?") -> Messages:
    """Return the messages of the next turn."""
    return [
        *before,
        {"role": "assistant", "content": reply},
        {"role": "user", "content": question},
    ]
