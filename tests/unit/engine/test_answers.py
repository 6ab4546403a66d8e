from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.errors import (
    EngineRefusedError,
    EngineUnreachableError,
    EngineWithoutConnectorError,
)
from sessiond.domain.heads import TurnSplit
from sessiond.domain.reasons import Cause, Reason
from sessiond.engine.answers import read_answer

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


def body(ours: object, usage: object = None) -> dict[str, Any]:
    return {"choices": [], "usage": usage, "kv_transfer_params": {"sessiond": ours}}


def test_a_whole_answer() -> None:
    cause = Cause(Reason.KV_EVICTED, "40 of 96")
    split = {"prompt_tokens": 97, "vram_tokens": 16, "ram_tokens": 32, "disk_tokens": 48}
    answer = read_answer(
        body(
            {"ok": True, "causes": [cause.as_json()], "split": split, "loadable_tokens": 96},
            {"prompt_tokens_details": {"cached_tokens": 96}},
        )
    )
    assert answer.ok
    assert answer.causes == (cause,)
    assert answer.split == TurnSplit(97, 16, 32, 48)
    assert answer.number("loadable_tokens") == answer.cached_tokens == 96


@pytest.mark.parametrize(
    "plain",
    [
        {},
        {"kv_transfer_params": None},
        {"kv_transfer_params": {}},
        {"kv_transfer_params": {"sessiond": None}},
        {"kv_transfer_params": {"do_remote_decode": True}},
    ],
)
def test_plain_vllm(plain: dict[str, Any]) -> None:
    with pytest.raises(EngineWithoutConnectorError):
        read_answer(plain)


@pytest.mark.parametrize("value", [None, -1, "7", 7.0, True, [7]])
def test_what_is_no_count_is_never_taken_for_one(value: object) -> None:
    with pytest.raises(EngineRefusedError, match="loadable_tokens"):
        read_answer(body({"loadable_tokens": value})).number("loadable_tokens")


def test_yes_means_true_and_nothing_else() -> None:
    for value in (1, "true", None, [True]):
        answer = read_answer(body({"ok": value, "committed": value}))
        assert not answer.ok
        assert not answer.flag("committed")


SPLITS = st.dictionaries(st.sampled_from([*TurnSplit.__dataclass_fields__, "x"]), JSON)


@given(JSON, JSON | SPLITS, JSON | st.dictionaries(st.just("prompt_tokens_details"), JSON))
def test_no_answer_breaks_the_reader(whole: object, ours: object, usage: object) -> None:
    for candidate in (whole, body(ours, usage), body({"causes": ours, "split": ours}, usage)):
        try:
            answer = read_answer(candidate)
        except (EngineRefusedError, EngineWithoutConnectorError):
            continue
        assert answer.split.cached_tokens >= 0
        assert answer.cached_tokens is None or answer.cached_tokens >= 0


@pytest.mark.parametrize("params", [{}, {"kv_transfer_params": None}])
def test_an_aborted_request_is_no_foreign_engine(params: dict[str, Any]) -> None:
    choice = {"index": 0, "text": "", "finish_reason": "abort"}
    with pytest.raises(EngineUnreachableError, match="aborted the request"):
        read_answer({"choices": [choice], **params})


@pytest.mark.parametrize("choices", [None, [], [None], [{"finish_reason": "stop"}], {"0": "abort"}])
def test_any_other_answer_without_ours_is(choices: object) -> None:
    with pytest.raises(EngineWithoutConnectorError):
        read_answer({"choices": choices})
