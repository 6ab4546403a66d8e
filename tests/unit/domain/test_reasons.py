from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.reasons import EXPLANATIONS, Cause, Reason

VALUES = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers())
CAUSES = st.builds(Cause, st.sampled_from(Reason), st.text(), VALUES, VALUES)


def test_every_reason_is_explained() -> None:
    assert set(EXPLANATIONS) == set(Reason)


@pytest.mark.parametrize("reason", Reason)
def test_an_explanation_is_a_sentence_and_says_what_to_do(reason: Reason) -> None:
    explanation = EXPLANATIONS[reason]
    assert explanation.sentence.endswith(".")
    assert explanation.hint.endswith(".")


def test_sentences_are_told_apart() -> None:
    assert len({explanation.sentence for explanation in EXPLANATIONS.values()}) == len(Reason)


@given(cause=CAUSES)
def test_json_round_trip(cause: Cause) -> None:
    assert Cause.from_json(json.loads(json.dumps(cause.as_json()))) == cause


@pytest.mark.parametrize("reason", Reason)
def test_the_json_form_carries_code_sentence_and_hint(reason: Reason) -> None:
    assert Cause(reason).as_json() == {
        "reason": reason.value,
        "sentence": EXPLANATIONS[reason].sentence,
        "hint": EXPLANATIONS[reason].hint,
    }


def test_one_of_two_values_shows_both() -> None:
    shown = Cause(Reason.ADAPTER_MISMATCH, stored="a").as_json()
    assert (shown["stored"], shown["live"]) == ("a", None)


@pytest.mark.parametrize(
    ("given_json", "detail"),
    [
        ({"reason": "of_a_later_version"}, "of_a_later_version"),
        ({"reason": "of_a_later_version", "detail": "more"}, "more"),
        ({}, "None"),
        ({"reason": 5}, "5"),
        ({"reason": None}, "None"),
    ],
)
def test_an_unknown_code_is_kept_as_detail(given_json: dict[str, Any], detail: str) -> None:
    assert Cause.from_json(given_json) == Cause(Reason.INTERNAL_ERROR, detail)
