"""What an FP8 KV cache changes about tokens: beside 16-bit KV, and after a resume.

An engine with 16-bit KV and one with FP8 KV continue the same contexts greedily. They may differ:
that is the price of FP8, and it is told. What sessiond adds must be nothing: after a suspend and
a restart of the engine, the FP8 engine must give exactly what it gave from VRAM.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sessiond.app.bench.arrivals import UnexpectedPathError
from sessiond.app.bench.resume.ask import Answer, require_same
from sessiond.app.bench.resume.options import AUTO, OURS, RECOMPUTE, ResumeOptions
from sessiond.app.bench.resume.ours import Ours
from sessiond.app.bench.resume.rivals import Rival
from sessiond.app.bench.resume.sessions import Context
from sessiond.app.bench.resume.site import Site, kv_token_bytes
from sessiond.app.trials import Say
from sessiond.testing.servers import ServerFailedError

#: Of each context; with its tail, fewer than a chunk more.
CONTINUED_TOKENS = 64
#: What vLLM says when one of its processes did not start; why not is told before.
_CONSEQUENCE = "initialization failed"
#: The end of a traceback, whichever process logs it.
_ERROR = re.compile(r"^(?:\(.*?\) ERROR .*?\] )?([\w.]*(?:Error|Exception): .+)$", re.MULTILINE)


@dataclass(frozen=True)
class Divergence:
    """How one context was continued twice."""

    context: str
    context_tokens: int
    tokens: int
    identical_tokens: int  #: at the same place, also behind the first that differs
    first_divergence: int | None  #: the place of the first token that differs; ``None``: none does
    #: Of log-probabilities, in nats, as long as the tokens before were the same.
    mean_difference: float
    largest_difference: float


def measure_effect(
    contexts: Sequence[Context], site: Site, options: ResumeOptions, say: Say
) -> dict[str, Any]:
    """Return what the report says of an FP8 KV cache.

    :raises RuntimeError: no engine serves with it here; the text has vLLM's reason
    :raises WrongTokenError: a resume changed a token, or its log-probability
    """
    name = next(name for name in OURS if name in options.contestants)
    narrow = Ours(f"effect-{name}", site, name.removeprefix("sessiond-"), with_ram=False)
    narrow_answers = _resumed(narrow, contexts, options.kv_cache_dtype, say)
    wide_site = replace(site, kv_cache_dtype=AUTO, token_bytes=kv_token_bytes(site.model, AUTO))
    wide = Rival(f"effect-{RECOMPUTE}", wide_site)
    try:
        wide.restart()
        say("16-bit KV continues the same contexts")
        wide_answers = [wide.arrive(one, CONTINUED_TOKENS) for one in contexts]
    finally:
        wide.close()
    found = list(map(divergence, contexts, wide_answers, narrow_answers))
    return {**summary(found), "resumed_contexts_identical": len(contexts)}


def _resumed(ours: Ours, contexts: Sequence[Context], dtype: str, say: Say) -> list[Answer]:
    """Continue contexts, then again after a suspend and a restart; return the first answers."""
    try:
        started(ours.restart, dtype)
        say(f"--kv-cache-dtype {dtype}: vLLM serves with it; contexts are continued and suspended")
        prepared = [ours.prepare(one, CONTINUED_TOKENS) for one in contexts]
        ours.restart()
        for one, before in zip(contexts, prepared, strict=True):
            answer = ours.arrive(one, CONTINUED_TOKENS)
            if answer.cached_tokens != one.whole_tokens:
                raise UnexpectedPathError(f"{one.name}: {answer.cached_tokens} tokens came back.")
            require_same("resumed", one, answer, before.warm)
        say(f"{len(contexts)} resumed contexts went on exactly as from VRAM")
    finally:
        ours.close()
    return [before.first for before in prepared]


def started(start: Callable[[], None], dtype: str) -> None:
    """Start an engine with this type of KV cache.

    :raises RuntimeError: it does not start; the text has the reason
    """
    try:
        start()
    except ServerFailedError as error:
        raise RuntimeError(
            f"No engine serves with --kv-cache-dtype {dtype} here: {reason_of(error.log)}"
        ) from error


def reason_of(log: str) -> str:
    """Return the last error in a log that is not the consequence of another."""
    errors = [found for found in _ERROR.findall(log) if _CONSEQUENCE not in found]
    return errors[-1].strip() if errors else log.strip().rpartition("\n")[2]


def divergence(context: Context, wide: Answer, narrow: Answer) -> Divergence:
    """Compare two continuations of one context."""
    same = [one == other for one, other in zip(wide.tokens, narrow.tokens, strict=True)]
    first = same.index(False) if False in same else None
    # Of the first token that differs, too: what comes before it is the same.
    compared = len(same) if first is None else first + 1
    differences = [
        abs(one[word] - other[word])
        for one, other in zip(wide.steps[:compared], narrow.steps[:compared], strict=True)
        for word in one.keys() & other.keys()
    ]
    return Divergence(
        context.name,
        context.whole_tokens,
        len(same),
        sum(same),
        first,
        statistics.fmean(differences) if differences else 0.0,
        max(differences, default=0.0),
    )


def summary(found: Sequence[Divergence]) -> dict[str, Any]:
    """Return all of them together, and each."""
    firsts = [one.first_divergence for one in found if one.first_divergence is not None]
    return {
        "compared_with": "16-bit KV of the same model, greedy tokens of the same contexts",
        "contexts": len(found),
        "tokens_each": CONTINUED_TOKENS,
        "identical_share": sum(one.identical_tokens for one in found)
        / sum(one.tokens for one in found),
        "first_token_identical_share": statistics.fmean(one.first_divergence != 0 for one in found),
        "diverged_contexts": len(firsts),
        "first_divergence_median": statistics.median(firsts) if firsts else None,
        "logprob_difference_mean_nats": statistics.fmean(one.mean_difference for one in found),
        "logprob_difference_largest_nats": max(one.largest_difference for one in found),
        "by_context": [asdict(one) for one in found],
    }
