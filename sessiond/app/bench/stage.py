"""Where benchmarks run: a folder of their own, and an engine whose KV is soon on disk alone."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx

from sessiond.testing.model import build_model
from sessiond.testing.stack import SERVED_NAME, Stack
from sessiond.testing.texts import real_text

_CHUNK_BYTES: Final = 2_949_120  # of the demo's model
_TEXT_CHARS: Final = 300_000


@contextmanager
def own_folder(parent: Path, purpose: str) -> Iterator[Path]:
    """Yield a new folder inside *parent*, which is made if it is not there; it is removed after."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=parent.absolute()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def start_with_small_ram(
    stack: Stack, models: Path, ram_tier_chunks: int, kv_space_gib: int
) -> list[int]:
    """Start a daemon and an engine with room for so many chunks in RAM.

    Returns the tokens of a long text. The engine is in development mode, for its call that
    clears VRAM.
    """
    model = build_model(models.absolute())
    stack.start_daemon()
    ram_bytes = str(ram_tier_chunks * _CHUNK_BYTES)
    env = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": str(kv_space_gib)}
    stack.start_engine(model, ("--allow-weight-updates", "--ram-tier-bytes", ram_bytes), env)
    answer = httpx.post(
        f"http://127.0.0.1:{stack.engine_port}/tokenize",
        json={"model": SERVED_NAME, "prompt": real_text(_TEXT_CHARS)},
        timeout=60,
    )
    tokens: list[int] = answer.raise_for_status().json()["tokens"]
    return tokens
