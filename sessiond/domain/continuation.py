"""Continuing a session with its own tokens, where messages rendered anew would give others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tokens import TokenIds, common_prefix_tokens

#: What a decoder shows for bytes that are no character: different bytes look alike then.
_NO_CHARACTER = "\N{REPLACEMENT CHARACTER}"
_SHOWN_CHARS = 40
#: Types of a message's parts that vLLM reads as text.
TEXT_PART_TYPES = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})
#: Types that it reads as something else, and keys that tell so whatever the type is.
_OTHER_MEDIA = re.compile(r"(input_)?(image|audio|video)(_(url|embeds|pil))?|prompt_embeds")


@dataclass(frozen=True)
class Chat:
    """What a chat completion's prompt is rendered from, as its client sends it."""

    messages: Sequence[Mapping[str, object]]
    tools: Sequence[Mapping[str, object]] | None = None
    chat_template_kwargs: Mapping[str, object] | None = None

    @property
    def unfit_cause(self) -> Cause | None:
        """Why it cannot be continued: a part that is not text, such as an image."""
        parts = (part for message in self.messages for part in _parts(message.get("content")))
        causes = [cause for part in parts if (cause := _unfit_part(part)) is not None]
        images = (cause for cause in causes if cause.reason is Reason.NOT_TEXT)
        return next(images, causes[0] if causes else None)


@dataclass(frozen=True)
class Continuation:
    """A prompt that begins with a session's own tokens, or why there is none."""

    head_tokens: int
    rendered_tokens: int  #: of the messages, rendered anew
    common_tokens: int  #: at the beginning of both
    prompt: TokenIds[int] | None = None  #: ``None`` where the rendered one does as well, or better
    cause: Cause | None = None  #: why the head's tokens cannot be used

    @property
    def gained_tokens(self) -> int:
        """Tokens of the head that only this prompt continues."""
        return self.head_tokens - self.common_tokens if self.prompt is not None else 0


def continue_head(
    head: TokenIds[int], rendered: TokenIds[int], max_prompt_tokens: int
) -> Continuation:
    """Return a prompt of the head's tokens and of what *rendered* has beyond them.

    Where the head ends in *rendered* is a guess, by its last token: whoever sends the prompt
    must prove with :func:`difference` that it has the same text.
    """
    common = common_prefix_tokens(head, rendered)
    plain = Continuation(len(head), len(rendered), common)
    if common == len(head):
        return plain
    end = _end_of_head(head, rendered)
    if end is None:
        return _refused(plain, "the messages do not contain the head's last token as often")
    prompt = head + rendered[end:]
    if len(prompt) > max_prompt_tokens:
        return _refused(plain, f"{len(prompt)} tokens leave no room for a reply")
    return Continuation(len(head), len(rendered), common, prompt)


def difference(continued: str, rendered: str) -> Cause | None:
    """Return how the texts of two prompts differ; ``None`` if they are the same for certain."""
    if continued != rendered:
        return _first_difference(continued, rendered)
    if _NO_CHARACTER in rendered:
        return Cause(Reason.NOT_FAITHFUL, "the text has bytes that are no character")
    return None


def _parts(content: object) -> Sequence[object]:
    return content if isinstance(content, list | tuple) else ()


def _unfit_part(part: object) -> Cause | None:
    """Return why a part of a message is not known to be text; ``None`` if it is."""
    if isinstance(part, str):
        return None
    if not isinstance(part, Mapping):
        return Cause(Reason.NOT_FAITHFUL, "a message has a part that is neither text nor an object")
    kind = part.get("type", "text" if "text" in part else None)
    if any(_OTHER_MEDIA.fullmatch(str(name)) for name in (kind, *part)):
        return Cause(Reason.NOT_TEXT)
    if isinstance(kind, str) and kind in TEXT_PART_TYPES:
        return None
    shown = str(kind)[:_SHOWN_CHARS]
    return Cause(Reason.NOT_FAITHFUL, f"a message has a part of type {shown!r}, not known as text")


def _end_of_head(head: TokenIds[int], rendered: TokenIds[int]) -> int | None:
    """Return the place in *rendered* where the head's last token occurs as often as in *head*."""
    last, end = head[-1], 0
    for _ in range(head.count(last)):
        try:
            end = rendered.index(last, end) + 1
        except ValueError:
            return None
    return end


def _refused(plain: Continuation, detail: str) -> Continuation:
    cause = Cause(Reason.NOT_FAITHFUL, detail)
    return Continuation(plain.head_tokens, plain.rendered_tokens, plain.common_tokens, cause=cause)


def _first_difference(continued: str, rendered: str) -> Cause:
    shorter = min(len(continued), len(rendered))
    differing = (at for at in range(shorter) if continued[at] != rendered[at])
    at = next(differing, shorter)
    shown = slice(max(0, at - _SHOWN_CHARS // 2), at + _SHOWN_CHARS // 2)
    return Cause(
        Reason.NOT_FAITHFUL,
        f"the text differs from character {at} on",
        stored=continued[shown],
        live=rendered[shown],
    )
