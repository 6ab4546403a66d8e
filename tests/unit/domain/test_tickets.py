from __future__ import annotations

import base64
import hmac
import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sessiond.domain.errors import (
    TicketError,
    TicketExpiredError,
    TicketForgedError,
    TicketMalformedError,
)
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tickets import (
    CLOCK_SLACK_S,
    MAX_TICKET_CHARS,
    Ticket,
    TicketOp,
    causes_text,
    sign,
    verify,
)

KEY = b"k" * 32
NOW = 1_800_000_000
TICKET = Ticket(
    TicketOp.SUSPEND, "acme", "s-1", "e" * 32, "op-1", 3, "5a17", "d1", 100, NOW - 5, NOW + 60
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
TICKETS = st.builds(
    Ticket,
    op=st.sampled_from(TicketOp),
    tenant=TEXTS,
    session=TEXTS,
    engine_id=TEXTS,
    operation_id=TEXTS,
    generation=st.integers(0, 2**63),
    salt_hash=TEXTS,
    head_digest=TEXTS,
    head_tokens=st.integers(0, 2**32),
    not_before_unix_s=st.integers(0, NOW),
    expires_unix_s=st.integers(NOW, 2**40),
    adapter_digest=TEXTS,
    recomputes=st.integers(0, 1),
)


def with_right_mac(payload: bytes) -> str:
    """Sign any bytes as tickets are signed, by the words of the module's docstring."""
    mac = hmac.digest(KEY, b"sessiond ticket v1\0" + payload, "sha256")
    parts = (base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (payload, mac))
    return ".".join(("v1", *parts))


def signed_fields(**fields: Any) -> str:  # noqa: ANN401 - any JSON value
    return with_right_mac(json.dumps({**asdict(TICKET), **fields}).encode())


@given(ticket=TICKETS)
def test_a_signed_ticket_is_read_back(ticket: Ticket) -> None:
    assert verify(sign(ticket, KEY), KEY, NOW) == ticket


def test_the_form_is_the_documented_one() -> None:
    assert verify(signed_fields(), KEY, NOW) == TICKET


@given(place=st.integers(0, 10**4), character=st.characters())
def test_any_changed_character_is_refused(place: int, character: str) -> None:
    text = sign(TICKET, KEY)
    place %= len(text)
    assume(text[place] != character)
    with pytest.raises(TicketError):
        verify(text[:place] + character + text[place + 1 :], KEY, NOW)


@pytest.mark.parametrize("place", range(len(sign(TICKET, KEY))))
def test_no_other_base64_character_does(place: int) -> None:
    # The last character of a part has spare bits, and decoders take '+' for '-'.
    text = sign(TICKET, KEY)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_+/="
    for character in alphabet.replace(text[place], ""):
        with pytest.raises(TicketError):
            verify(text[:place] + character + text[place + 1 :], KEY, NOW)


@given(cut=st.integers(0, 10**4))
def test_a_cut_ticket_is_refused(cut: int) -> None:
    text = sign(TICKET, KEY)
    with pytest.raises(TicketError):
        verify(text[: cut % len(text)], KEY, NOW)


@given(text=st.text(max_size=200))
def test_any_other_text_is_malformed(text: str) -> None:
    with pytest.raises(TicketMalformedError):
        verify(text, KEY, NOW)


@pytest.mark.parametrize("suffix", ["=", ".", " ", "\n", "A"])
def test_nothing_may_follow(suffix: str) -> None:
    with pytest.raises(TicketError):
        verify(sign(TICKET, KEY) + suffix, KEY, NOW)


def test_another_key_is_forgery() -> None:
    with pytest.raises(TicketForgedError):
        verify(sign(TICKET, b"x" * 32), KEY, NOW)


def test_another_tag_is_forgery() -> None:
    payload = sign(TICKET, KEY).split(".")[1]
    raw = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
    mac = base64.urlsafe_b64encode(hmac.digest(KEY, raw, "sha256")).rstrip(b"=").decode()
    with pytest.raises(TicketForgedError):
        verify(f"v1.{payload}.{mac}", KEY, NOW)


def test_another_version_is_malformed() -> None:
    with pytest.raises(TicketMalformedError):
        verify(sign(TICKET, KEY).replace("v1", "v2", 1), KEY, NOW)


@pytest.mark.parametrize(
    ("seconds_from_start", "seconds_from_end"),
    [(-CLOCK_SLACK_S, None), (0, None), (None, 0), (None, CLOCK_SLACK_S)],
)
def test_it_is_valid_up_to_the_slack(
    seconds_from_start: int | None, seconds_from_end: int | None
) -> None:
    assert verify(sign(TICKET, KEY), KEY, moment(seconds_from_start, seconds_from_end)) == TICKET


@pytest.mark.parametrize(
    ("seconds_from_start", "seconds_from_end"),
    [(-CLOCK_SLACK_S - 0.001, None), (-1e9, None), (None, CLOCK_SLACK_S + 0.001), (None, 1e9)],
)
def test_beyond_the_slack_it_is_not(
    seconds_from_start: float | None, seconds_from_end: float | None
) -> None:
    with pytest.raises(TicketExpiredError):
        verify(sign(TICKET, KEY), KEY, moment(seconds_from_start, seconds_from_end))


def moment(from_start_s: float | None, from_end_s: float | None) -> float:
    if from_start_s is not None:
        return TICKET.not_before_unix_s + from_start_s
    assert from_end_s is not None
    return TICKET.expires_unix_s + from_end_s


def test_without_a_lifetime_it_is_not_valid() -> None:
    with pytest.raises(TicketExpiredError):
        verify(sign(replace(TICKET, expires_unix_s=0), KEY), KEY, NOW)


def test_an_oversized_ticket_is_not_looked_at() -> None:
    big = sign(replace(TICKET, session="s" * MAX_TICKET_CHARS), KEY)
    with pytest.raises(TicketMalformedError):
        verify(big, KEY, NOW)


@pytest.mark.parametrize(
    "fields",
    [
        {"op": "read"},
        {"op": None},
        {"op": ["turn"]},
        {"tenant": 5},
        {"session": None},
        {"generation": "3"},
        {"generation": 3.0},
        {"generation": True},
        {"generation": None},
        {"head_tokens": [1]},
        {"expires_unix_s": float(NOW + 60)},
        {"not_before_unix_s": str(NOW)},
        {"extra": 1},
    ],
    ids=str,
)
def test_a_right_mac_does_not_excuse_wrong_fields(fields: dict[str, Any]) -> None:
    with pytest.raises(TicketMalformedError):
        verify(signed_fields(**fields), KEY, NOW)


@pytest.mark.parametrize("payload", [b"", b"{}", b"[]", b"5", b"null", b'"x"', b"\xff", b"{"])
def test_a_right_mac_does_not_excuse_another_payload(payload: bytes) -> None:
    with pytest.raises(TicketMalformedError):
        verify(with_right_mac(payload), KEY, NOW)


CAUSE = Cause(Reason.WEIGHTS_MISMATCH, stored="a" * 64, live="b" * 64)


def test_causes_come_back_as_they_were() -> None:
    causes = (CAUSE, Cause(Reason.RECOMPUTE_IS_FASTER, "by 3 ms"), Cause(Reason.ENGINE_LOST_KV))
    ticket = replace(TICKET, causes=causes_text(causes))
    assert verify(sign(ticket, KEY), KEY, NOW).known_causes == causes
    assert causes_text(()) == ""
    assert TICKET.known_causes == ()


@pytest.mark.parametrize("text", ["{}", "[1]", "[", "1", '[{"reason": 1}, null]'])
def test_what_are_no_causes_makes_no_ticket(text: str) -> None:
    with pytest.raises(TicketMalformedError):
        verify(signed_fields(causes=text), KEY, NOW)


def test_causes_that_are_too_long_go_without_what_is_too_long() -> None:
    long = Cause(Reason.MODEL_CONFIG_MISMATCH, "d" * 50, stored=["v" * 2000], live=["w" * 2000])
    worse = Cause(Reason.STORE_FAILED, "d" * 5000)
    text = causes_text((long, worse, CAUSE))
    assert replace(TICKET, causes=text).known_causes == (
        Cause(Reason.MODEL_CONFIG_MISMATCH, "d" * 50),
        Cause(Reason.STORE_FAILED),
        CAUSE,
    )


def test_no_cause_is_told_instead_of_one_before_it() -> None:
    long = Cause(Reason.TEMPLATE_ARGUMENTS_MISMATCH, "d" * 220)
    more = (*(long for _ in range(4)), *(Cause(Reason.TEMPLATE_ARGUMENTS_MISMATCH),) * 2, CAUSE)
    text = causes_text((*more, Cause(Reason.TIER_OFF)))
    told = replace(TICKET, causes=text).known_causes
    assert [one.reason for one in told] == [one.reason for one in more][: len(told)]
    assert len(told) < len(more)


@given(
    st.lists(
        st.builds(
            Cause,
            st.sampled_from(Reason),
            TEXTS | st.just("ü" * 400),
            st.none() | TEXTS | st.lists(TEXTS),
            st.none() | TEXTS | st.integers(),
        ),
        max_size=40,
    )
)
def test_a_ticket_with_any_causes_is_short_enough(causes: list[Cause]) -> None:
    longest = "x" * 64
    ticket = replace(
        TICKET,
        tenant=longest,
        session=longest,
        operation_id=longest,
        salt_hash=longest,
        adapter_digest=longest,
        head_digest=longest,
        generation=10**18,
        session_created_unix_us=10**17,
        causes=causes_text(causes),
    )
    text = sign(ticket, KEY)
    assert len(text) <= MAX_TICKET_CHARS
    told = verify(text, KEY, NOW).known_causes
    assert [one.reason for one in told] == [one.reason for one in causes][: len(told)]
    assert len(told) == len(causes) or len(told) >= 4
