from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.fingerprint import FIELDS, FieldClass, Fingerprint, causes, compare
from sessiond.domain.reasons import Reason
from sessiond.domain.tickets import causes_text

FULL: dict[str, Any] = {name: f"value of {name}" for name in FIELDS}
NAMES = [*FIELDS, "invented_later", "a", "z"]
FINGERPRINTS = st.dictionaries(
    st.sampled_from(NAMES), st.sampled_from([0, 1, True, None, 1.0, "1", [1], {"a": 1}])
).map(Fingerprint)

#: An engine that stores KV as it is has no field that says so.
REQUIRED = [name for name in FIELDS if name != "lossy"]


def changed(name: str, value: Any) -> Fingerprint:  # noqa: ANN401 - any JSON value
    return Fingerprint({**FULL, name: value})


def lacking(name: str) -> Fingerprint:
    return Fingerprint({key: value for key, value in FULL.items() if key != name})


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_differs_is_named_with_its_own_reason(name: str) -> None:
    (mismatch,) = compare(changed(name, "old"), changed(name, "new"))
    assert (mismatch.field, mismatch.field_class) == (name, FIELDS[name].field_class)
    assert mismatch.cause.reason is FIELDS[name].reason
    assert (mismatch.cause.stored, mismatch.cause.live) == ("old", "new")


@pytest.mark.parametrize("name", REQUIRED)
def test_a_field_that_the_live_side_lacks_is_a_mismatch(name: str) -> None:
    (mismatch,) = compare(Fingerprint(FULL), lacking(name))
    assert mismatch.field_class is FIELDS[name].field_class
    assert mismatch.cause.reason is Reason.UNKNOWN_FIELD_MISMATCH
    assert (mismatch.cause.detail, mismatch.cause.live) == (name, None)


@pytest.mark.parametrize("name", REQUIRED)
def test_a_field_that_the_stored_side_lacks_is_a_mismatch(name: str) -> None:
    (mismatch,) = compare(lacking(name), Fingerprint(FULL))
    assert mismatch.field_class is FIELDS[name].field_class
    assert mismatch.cause.reason is Reason.UNKNOWN_FIELD_MISMATCH
    assert (mismatch.cause.detail, mismatch.cause.stored) == (name, None)


def test_lossy_kv_is_for_engines_that_ask_for_it_and_no_other_is_for_those() -> None:
    lossy, plain = changed("lossy", "fp8"), lacking("lossy")
    for stored, live in ((lossy, plain), (plain, lossy), (lossy, changed("lossy", "fp7"))):
        (mismatch,) = compare(stored, live)
        assert mismatch.field_class is FieldClass.BYTES
        assert mismatch.cause.reason is Reason.LOSSY_MISMATCH
        assert mismatch.cause.stored == stored.fields.get("lossy")
        assert mismatch.cause.live == live.fields.get("lossy")
    assert plain.digest(FieldClass.BYTES) != lossy.digest(FieldClass.BYTES)
    assert compare(lossy, lossy) == []


def test_a_field_of_another_version_forbids_loading() -> None:
    (mismatch,) = compare(changed("invented_later", 1), changed("invented_later", 2))
    assert mismatch.field_class is FieldClass.BYTES


def explained(digest: str, theta: float | None) -> Fingerprint:
    known = {} if theta is None else {"explained": {"model_config_digest": {"rope_theta": theta}}}
    return Fingerprint({**FULL, "model_config_digest": digest, **known})


def test_what_lies_behind_a_digest_names_the_keys_with_both_values() -> None:
    (mismatch,) = compare(explained("aa", 1e4), explained("bb", 5e5))
    assert (mismatch.cause.stored, mismatch.cause.live) == ("aa", "bb")
    assert mismatch.cause.in_words == (
        "The model's configuration (rope, windows, heads, layers) differs "
        "(model_config_digest: rope_theta stored 10000.0, live 500000.0)."
    )


def test_a_ticket_has_room_for_the_keys() -> None:
    one, other = (
        Fingerprint({"chat_template_arguments": {str(key) * 60: value * 60 for key in range(20)}})
        for value in "ab"
    )
    (mismatch,) = compare(one, other)
    (told,) = json.loads(causes_text([mismatch.cause]))
    assert told["detail"] == mismatch.cause.detail
    assert told["detail"].endswith("; and 19 more")


@pytest.mark.parametrize("theta", [None, 5e5])
def test_it_is_no_part_of_what_is_compared(theta: float | None) -> None:
    one, other = explained("aa", 1e4), explained("aa", theta)
    assert compare(one, other) == []
    assert [one.digest(each) for each in FieldClass] == [other.digest(each) for each in FieldClass]


@pytest.mark.parametrize("behind", [{}, {"model_config_digest": {}}, None, 1])
def test_where_it_tells_nothing_the_digests_are_told(behind: Any) -> None:  # noqa: ANN401 - any JSON value
    told = changed("model_config_digest", "aa")
    other = Fingerprint({**told.fields, "explained": behind})
    for stored in (
        explained("bb", 1e4),
        Fingerprint({**explained("bb", None).fields, "explained": behind}),
    ):
        (mismatch,) = compare(stored, other)
        assert mismatch.cause.detail == "model_config_digest"


def test_none_is_not_the_same_as_nothing() -> None:
    (mismatch,) = compare(changed("quantization", None), lacking("quantization"))
    assert mismatch.field == "quantization"


@pytest.mark.parametrize(("one", "other"), [(True, 1), (1, 1.0), (0, False), ("1", 1), (None, "")])
def test_values_are_compared_by_their_canonical_form(
    one: Any,  # noqa: ANN401 - any JSON value
    other: Any,  # noqa: ANN401 - any JSON value
) -> None:
    assert len(compare(changed("parallel", one), changed("parallel", other))) == 1


def test_the_order_inside_a_value_does_not_matter() -> None:
    assert compare(
        changed("parallel", {"tp": 1, "pp": 2}), changed("parallel", {"pp": 2, "tp": 1})
    ) == []  # fmt: skip


@given(fingerprint=FINGERPRINTS)
def test_a_fingerprint_matches_itself(fingerprint: Fingerprint) -> None:
    assert compare(fingerprint, Fingerprint(dict(reversed([*fingerprint.fields.items()])))) == []


@given(one=FINGERPRINTS, other=FINGERPRINTS)
def test_comparing_has_no_sides(one: Fingerprint, other: Fingerprint) -> None:
    there, back = compare(one, other), compare(other, one)
    assert [(m.field, m.field_class) for m in there] == [(m.field, m.field_class) for m in back]
    assert [(m.cause.stored, m.cause.live) for m in there] == [
        (m.cause.live, m.cause.stored) for m in back
    ]


@given(one=FINGERPRINTS, other=FINGERPRINTS)
def test_bytes_fields_come_first(one: Fingerprint, other: Fingerprint) -> None:
    classes = [list(FieldClass).index(m.field_class) for m in compare(one, other)]
    assert classes == sorted(classes)


@given(one=FINGERPRINTS, other=FINGERPRINTS, field_class=st.sampled_from(FieldClass))
def test_a_classs_digest_changes_exactly_if_a_field_of_it_does(
    one: Fingerprint, other: Fingerprint, field_class: FieldClass
) -> None:
    differs = bool(causes(compare(one, other), field_class))
    assert (one.digest(field_class) != other.digest(field_class)) == differs


def test_every_class_has_a_field() -> None:
    assert {field.field_class for field in FIELDS.values()} == set(FieldClass)
