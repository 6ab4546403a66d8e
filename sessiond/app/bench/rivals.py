"""What users would otherwise choose: vLLM's own file system tier, and safetensors files."""

from __future__ import annotations

import importlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

from sessiond.app.bench.region import Region, Window
from sessiond.domain.errors import ConfigurationError

#: As vLLM's own tier is configured by default.
_FS_THREADS = 16
#: As if many requests came at once.
MANY_JOBS_CHUNKS = 16


class VllmFs:
    """The functions of vLLM's ``fs`` tier, in its own thread pool: a file for each chunk.

    :param job_chunks: chunks of one job, each of which vLLM works on with one thread. vLLM makes
        one job for all chunks of one request.
    :raises ConfigurationError: vLLM is not installed
    """

    def __init__(self, folder: Path, region: Region, job_chunks: int | None = None) -> None:
        self.name = "vllm-fs" if job_chunks is None else "vllm-fs-many-jobs"
        self._folder = folder / self.name
        self._region = region
        self._job_chunks = job_chunks
        package = "vllm.v1.kv_offload.tiering.fs"
        try:
            self._io: Any = importlib.import_module(f"{package}.io")
            pool: Any = importlib.import_module(f"{package}.thread_pool")
        except ModuleNotFoundError as error:
            raise ConfigurationError("vLLM is not installed, and is measured beside.") from error
        self._pool = pool.DualQueueThreadPool(_FS_THREADS, _FS_THREADS)
        self._direct = bool(self._io.probe_o_direct(str(folder)))

    @property
    def is_direct(self) -> bool:
        """Whether its reads and writes pass the page cache by."""
        return self._direct

    def store(self, window: Window) -> float:
        """Write a file for each chunk, which vLLM does not sync; returns the seconds."""
        return self._run(window, self._io.batch_store_block, self._pool.enqueue_store)

    def load(self, window: Window) -> float:
        """Read all files into the slots; returns the seconds."""
        return self._run(window, self._io.batch_load_block, self._pool.enqueue_load)

    def discard(self, window: Window) -> None:
        """Remove the files."""
        del window
        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=True)

    def _run(self, window: Window, work: Any, enqueue: Any) -> float:  # noqa: ANN401 - vLLM's own
        view = self._region.bytes.data
        size = self._region.chunk_bytes
        step = self._job_chunks or window.chunks
        began_s = time.perf_counter()
        for start in range(0, window.chunks, step):
            chunks = range(start, min(start + step, window.chunks))
            paths = [self._path(window, chunk) for chunk in chunks]
            offsets = [window.slots[chunk] * size for chunk in chunks]

            def task(paths: list[str] = paths, offsets: list[int] = offsets) -> None:
                work(paths, view, offsets, size, self._direct)

            enqueue(start, 1, [task])
        self._pool.wait_idle()
        seconds = time.perf_counter() - began_s
        if not all(success for _, success, _ in self._pool.get_finished()):
            raise RuntimeError("vLLM's fs tier failed.")
        return seconds

    def _path(self, window: Window, chunk: int) -> str:
        name = f"{window.number:08x}{chunk:056x}"
        return str(self._folder / f"{chunk % 4096:03x}" / "00_g0" / f"{name}.bin")


class Safetensors:
    """One safetensors file with a tensor for each chunk, copied into the slots."""

    name = "safetensors"

    def __init__(self, folder: Path, region: Region) -> None:
        self._folder = folder
        self._region = region
        self._numpy: Any = importlib.import_module("safetensors.numpy")
        self._open: Any = importlib.import_module("safetensors").safe_open

    def prepare(self, window: Window) -> None:
        """Write the window's file, unless an earlier round has."""
        path = self._path(window)
        if path.exists():
            return
        tensors = {str(i): self._region.slot(slot) for i, slot in enumerate(window.slots)}
        self._numpy.save_file(tensors, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())

    def load(self, window: Window) -> float:
        """Load every tensor into its slot; returns the seconds."""
        began_s = time.perf_counter()
        with self._open(self._path(window), framework="pt") as file:
            for index, slot in enumerate(window.slots):
                np.copyto(self._region.slot(slot), file.get_tensor(str(index)).numpy())
        return time.perf_counter() - began_s

    def _path(self, window: Window) -> Path:
        return self._folder / f"{window.number}.safetensors"
