"""What decides which tokens a text or a conversation becomes.

``tokenizer_config.json`` holds three things that are told apart here, so that an explanation
names the right one: special tokens, the chat template, and everything else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sessiond.connector.frontend import Frontend
from sessiond.connector.modelconfig import special_ids
from sessiond.connector.plain import plain
from sessiond.domain.canonical import JsonValue, canonical_json, json_digest

_CONFIG = "tokenizer_config.json"
_SPECIAL_FILE = "special_tokens_map.json"
_PROCESSOR = "processor_config.json"
_TEMPLATE = "chat_template"
_TEMPLATE_PATTERNS = ("chat_template.jinja", "additional_chat_templates/*.jinja")
_TEMPLATE_JSON = "chat_template.json"
_SPECIAL = frozenset(
    {
        "add_bos_token",
        "add_eos_token",
        "additional_special_tokens",
        "bos_token",
        "cls_token",
        "eos_token",
        "extra_special_tokens",
        "mask_token",
        "pad_token",
        "sep_token",
        "unk_token",
    }
)
#: Where the files were, and who wrote them.
_INCIDENTAL = frozenset({"name_or_path", "tokenizer_file", "transformers_version"})


@dataclass(frozen=True)
class Prompts:
    """The folders from which a server takes its tokenizer and its template."""

    tokenizer: Path
    processor: Path  #: the model's own folder: that of a multimodal model's processor

    def files(self) -> list[Path]:
        """Return the files that are read here."""
        named = [
            self.tokenizer / _CONFIG,
            self.tokenizer / _SPECIAL_FILE,
            *(folder / name for folder in self._folders for name in (_PROCESSOR, _TEMPLATE_JSON)),
            *self._template_files(),
        ]
        return sorted({path for path in named if path.is_file()})

    def tokenizer_settings(self, tokenizer_mode: str) -> JsonValue:
        """Return what the tokenizer's settings say beside special tokens and the template."""
        others = {
            name: plain(value)
            for name, value in _object(self.tokenizer / _CONFIG).items()
            if name not in _SPECIAL | _INCIDENTAL | {_TEMPLATE}
        }
        return {"mode": tokenizer_mode, "settings": others}

    def special_tokens(self, model: Any) -> JsonValue:
        """Return the special tokens of vLLM's ``ModelConfig`` and of the tokenizer."""
        settings = _object(self.tokenizer / _CONFIG)
        named = {name: plain(settings[name]) for name in sorted(_SPECIAL & settings.keys())}
        mapped = plain(_object(self.tokenizer / _SPECIAL_FILE))
        return {
            "ids": special_ids(model),
            **named,
            # Old tokenizers have it, with the same tokens again for each role.
            **({"map_digest": json_digest(mapped).hex()} if mapped else {}),
        }

    def template_digest(self, given: str | None) -> str:
        """Return the digest of the chat template, as hex; empty if there is none.

        :param given: the one of ``--chat-template``, which counts alone. Otherwise all that the
            tokenizer and the processor have count, because a request's tools decide which one
            is taken.
        """
        templates = [given] if given is not None else list(self._templates())
        unique = sorted({canonical_json(template) for template in templates})
        return json_digest([each.decode() for each in unique]).hex() if unique else ""

    def _templates(self) -> Iterator[JsonValue]:
        for path in self._template_files():
            yield path.read_text(encoding="utf-8", errors="backslashreplace")
        sources = [self.tokenizer / _CONFIG]
        sources += [folder / _TEMPLATE_JSON for folder in self._folders]
        sources += [folder / _PROCESSOR for folder in self._folders]
        for source in sources:
            template = _object(source).get(_TEMPLATE)
            if template:
                yield plain(template)

    def _template_files(self) -> list[Path]:
        return [
            path
            for folder in self._folders
            for pattern in _TEMPLATE_PATTERNS
            for path in sorted(folder.glob(pattern))
        ]

    @property
    def _folders(self) -> tuple[Path, ...]:
        return (self.tokenizer, self.processor)


def template_arguments(frontend: Frontend) -> dict[str, JsonValue]:
    """Return what the server gives to the template beside the messages."""
    return {
        "arguments": plain(frontend.chat_template_kwargs),
        "content_format": frontend.chat_template_content_format,
    }


def _object(path: Path) -> Mapping[str, Any]:
    """Return a JSON object; an empty one if there is no such file. One that cannot be read as
    JSON is told by its bytes."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    try:
        value = json.loads(data)
    except ValueError:
        return {"unreadable": data.hex()}
    return value if isinstance(value, dict) else {"unreadable": data.hex()}
