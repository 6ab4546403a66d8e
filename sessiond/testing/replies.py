"""What two completions have in common."""

from __future__ import annotations

from typing import Any, Final

#: Nats. Other batches have other roundings, so a near tie may flip.
TOLERANCE: Final = 0.2


def require_same_tokens(answer: dict[str, Any], reference: dict[str, Any]) -> None:
    """Assert the same tokens, up to a near tie of the reference's.

    Both are completions with ``logprobs`` and ``return_token_ids``.
    """
    (got,), (expected,) = answer["choices"], reference["choices"]
    pairs = zip(got["token_ids"], expected["token_ids"], strict=True)
    differing = [at for at, (one, other) in enumerate(pairs) if one != other]
    if differing:
        likely = expected["logprobs"]["top_logprobs"][differing[0]]
        chosen = got["logprobs"]["tokens"][differing[0]]
        assert max(likely.values()) - likely[chosen] < TOLERANCE
