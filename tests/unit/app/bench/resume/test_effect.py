from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from sessiond.app.bench.resume import effect
from sessiond.app.bench.resume.ask import Answer
from sessiond.app.bench.resume.effect import divergence, reason_of, started, summary
from sessiond.app.bench.resume.options import FP8, PLANAR, ZSTD, ResumeOptions
from sessiond.app.bench.resume.sessions import Context
from sessiond.app.bench.resume.show import effect_in_words
from sessiond.domain.errors import ConfigurationError
from sessiond.testing.servers import ServerFailedError

CONTEXT = Context("round-0", tuple(range(258)))


def answer(tokens: list[int], logprobs: list[float]) -> Answer:
    steps = tuple({"a": one, "b": -3.0} for one in logprobs)
    return Answer(0.1, 1.0, tuple(tokens), steps, 256, {})


def test_log_probabilities_count_as_long_as_what_comes_before_is_the_same() -> None:
    found = divergence(
        CONTEXT,
        answer([1, 2, 3, 4], [-0.5, -0.5, -0.5, -9.0]),
        answer([1, 2, 5, 4], [-0.5, -0.4, -0.2, -0.1]),
    )
    assert (found.tokens, found.identical_tokens, found.first_divergence) == (4, 3, 2)
    assert found.largest_difference == pytest.approx(0.3)
    assert found.mean_difference == pytest.approx((0.1 + 0.3) / 6)


def test_the_same_continuation_does_not_diverge() -> None:
    one = answer([1, 2], [-0.5, -0.25])
    found = divergence(CONTEXT, one, one)
    assert (found.identical_tokens, found.first_divergence) == (2, None)
    assert (found.mean_difference, found.largest_difference) == (0.0, 0.0)


def test_all_contexts_together() -> None:
    one = answer([1, 2, 3, 4], [-0.5] * 4)
    other = answer([1, 9, 9, 4], [-0.7] * 4)
    told = summary([divergence(CONTEXT, one, one), divergence(CONTEXT, one, other)])
    assert told["identical_share"] == 6 / 8
    assert told["first_token_identical_share"] == 1.0
    assert (told["diverged_contexts"], told["first_divergence_median"]) == (1, 1)
    assert told["logprob_difference_largest_nats"] == pytest.approx(0.2)
    words = effect_in_words(FP8, {**told, "resumed_contexts_identical": 2})
    assert "75.0% of 64 greedy tokens of 2 contexts are identical" in words
    assert "at token 1 in the median" in words
    Console(quiet=True).print(words)


REASON = "NotImplementedError: FP8 KV cache on CPU requires x86 with AVX-512 or AMX."
LOG = f"""(APIServer pid=1) WARNING [u.py:255] This can cause errors like `OSError: [Errno 24]`.
(Worker pid=3) ERROR 11-30 21:35:19 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker pid=3) ERROR 11-30 21:35:19 [multiproc_executor.py:1063]     raise NotImplementedError(
(Worker pid=3) ERROR 11-30 21:35:19 [multiproc_executor.py:1063] {REASON}
(EngineCore pid=2) ERROR 11-30 21:35:20 [core.py:1] Exception: WorkerProc initialization failed.
Traceback (most recent call last):
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above.
UserWarning: resource_tracker: There appear to be leaked objects
"""


def test_vllms_refusal_is_told_with_its_reason() -> None:
    def refuse() -> None:
        raise ServerFailedError("The server ended with 1.", LOG)

    with pytest.raises(RuntimeError, match="--kv-cache-dtype fp8 here") as caught:
        started(refuse, FP8)
    assert str(caught.value).endswith(f"here: {REASON}")
    assert reason_of("no error\nthe last line\n") == "the last line"


def test_with_fp8_kv_the_codec_for_16_bit_numbers_takes_no_part(tmp_path: Path) -> None:
    plain, fp8 = (ResumeOptions(tmp_path, tmp_path, kv_cache_dtype=one) for one in ("auto", FP8))
    assert (ZSTD in plain.contestants, PLANAR in plain.contestants) == (False, True)
    assert (ZSTD in fp8.contestants, PLANAR in fp8.contestants) == (True, False)
    fp8.require_possible()
    with pytest.raises(ConfigurationError, match="types of the KV cache"):
        ResumeOptions(tmp_path, tmp_path, kv_cache_dtype="fp4").require_possible()


def test_a_continuation_stays_within_a_chunk() -> None:
    # A suspend must not store more chunks than the context has.
    assert effect.CONTINUED_TOKENS + 2 < 128
