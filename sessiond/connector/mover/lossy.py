"""Which lossy codec an engine's fingerprint asks for."""

from __future__ import annotations

from collections.abc import Mapping

from sessiond.domain.errors import ConfigurationError
from sessiond.domain.fingerprint import Fingerprint
from sessiond.domain.loss import FP8, LOSSY_FIELD
from sessiond.store.codecs import Codec

_CODECS: Mapping[tuple[str, str], Codec] = {
    (FP8, "bfloat16"): Codec.FP8_BFLOAT16,
    (FP8, "float16"): Codec.FP8_FLOAT16,
    (FP8, "half"): Codec.FP8_FLOAT16,
}


def lossy_codec(fingerprint: Fingerprint) -> Codec | None:
    """Return the codec with which this engine's KV is stored; ``None``: one without loss.

    :raises ConfigurationError: KV is of other numbers
    """
    way = fingerprint.fields.get(LOSSY_FIELD)
    if not way:
        return None
    numbers = str(fingerprint.fields.get("kv_dtype"))
    codec = _CODECS.get((str(way), numbers))
    if codec is None:
        raise ConfigurationError(
            f"The connector setting lossy={way} is for KV of 16-bit floats, not of {numbers}."
        )
    return codec
