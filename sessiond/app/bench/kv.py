"""Real KV for the benchmarks: that of the demo's model on real text.

A chunk has the engine's own layout on the CPU platform: ``[layers, heads, tokens, K | V]`` in
bfloat16. Contexts are computed once and kept as files of plain chunks.
"""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from sessiond.testing.model import MODEL_NAME, build_model

if TYPE_CHECKING:
    from sessiond.app.trials import Say

CHUNK_TOKENS = 128
CONTEXT_TOKENS = 8192
CONTEXT_CHUNKS = CONTEXT_TOKENS // CHUNK_TOKENS
#: Shorter texts do not fill a context.
_MIN_TEXT_BYTES = 40_000

Bytes = npt.NDArray[np.uint8]


class KvSource(Protocol):
    """Chunks to measure with."""

    @property
    def chunk_bytes(self) -> int:
        """The length of every chunk."""

    @property
    def description(self) -> str:
        """What the bytes are, for the report."""

    @property
    def distinct_chunks(self) -> int:
        """From this index on, chunks come again."""

    def read(self, index: int, out: Bytes) -> None:
        """Write the chunk with this index into *out*; any index is valid."""


@dataclass(frozen=True)
class KvFiles:
    """Chunks from files, one after the other, then again from the first."""

    paths: Sequence[Path]
    chunk_bytes: int
    description: str

    @property
    def distinct_chunks(self) -> int:
        """From this index on, chunks come again."""
        return CONTEXT_CHUNKS * len(self.paths)

    def read(self, index: int, out: Bytes) -> None:
        """Write the chunk with this index into *out*."""
        place = index % self.distinct_chunks
        path = self.paths[place // CONTEXT_CHUNKS]
        with path.open("rb", buffering=0) as file:
            file.seek(place % CONTEXT_CHUNKS * self.chunk_bytes)
            got = file.readinto(out.data)
        if got != self.chunk_bytes:
            raise OSError(f"{path} was cut; remove it, and it is made again.")


def real_kv(models: Path, cache: Path, contexts: int, say: Say) -> KvFiles:
    """Return the KV of the model for so many texts; computes what *cache* lacks.

    :param contexts: of 8,192 tokens each; there are about 30 texts
    :raises FileNotFoundError: the model's package is not installed
    """
    model = build_model(models)
    chunk_bytes = CHUNK_TOKENS * _token_bytes(model)
    texts = _texts()[:contexts]
    folder = cache / MODEL_NAME
    paths = [folder / f"{text.stem}.kv" for text in texts]
    missing = [pair for pair in zip(texts, paths, strict=True) if not pair[1].exists()]
    if missing:
        say(f"computing the KV of {len(missing)} texts of {CONTEXT_TOKENS:,} tokens, once")
        folder.mkdir(parents=True, exist_ok=True)
        _compute(model, missing, say)
    words = f"KV of {MODEL_NAME} in bfloat16, {len(paths)} texts of {CONTEXT_TOKENS:,} tokens"
    return KvFiles(paths, chunk_bytes, words)


def _token_bytes(model: Path) -> int:
    config = json.loads((model / "config.json").read_text())
    head_size = config["hidden_size"] // config["num_attention_heads"]
    return int(2 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head_size)


def _texts() -> list[Path]:
    """Return source files of the standard library that fill a context."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return [path for path in modules if path.stat().st_size > _MIN_TEXT_BYTES]


def _compute(model: Path, missing: Sequence[tuple[Path, Path]], say: Say) -> None:
    import torch  # noqa: PLC0415 - seconds to import, and only needed once
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(model)
    network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    network.eval()
    for text, path in missing:
        ids = tokenizer(text.read_text(), return_tensors="pt").input_ids[:, :CONTEXT_TOKENS]
        if ids.shape[1] < CONTEXT_TOKENS:
            raise ValueError(f"{text.name} has fewer than {CONTEXT_TOKENS} tokens.")
        with torch.inference_mode():
            cache = network.model(ids, use_cache=True).past_key_values
            kv = torch.stack([torch.cat([one.keys[0], one.values[0]], -1) for one in cache.layers])
            layers, heads, _, values = kv.shape
            split = kv.reshape(layers, heads, CONTEXT_CHUNKS, CHUNK_TOKENS, values)
            chunks = split.permute(2, 0, 1, 3, 4)
        unfinished = path.with_suffix(".unfinished")
        chunks.contiguous().view(torch.uint8).numpy().tofile(unfinished)
        unfinished.replace(path)
        say(f"  {path.name}")
