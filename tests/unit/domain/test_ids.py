from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sessiond.domain.errors import InvalidInputError, InvalidSessionIdError, InvalidTenantError
from sessiond.domain.ids import (
    DEFAULT_TENANT,
    is_hex_id,
    new_hex_id,
    new_operation_id,
    new_session_id,
    parse_session_id,
    parse_tenant,
)

if TYPE_CHECKING:
    from collections.abc import Callable

ALNUM = string.ascii_letters + string.digits
BAD = [
    "", "../x", "a/b", "%2e%2e", "\u2025", "a\0", "a" * 65, "a" * 300, "-a", "_a", ".", "a.b",
    "a b", " a", "a\n", "ä", "a\u0301", "\uff11", "a\\b", "a:b", "a;b", "$a", "a\u202eb", "\ud800",
]  # fmt: skip


def allowed(text: str) -> bool:
    """Say it again, without a regular expression."""
    return 1 <= len(text) <= 64 and text[0] in ALNUM and set(text) <= {*ALNUM, "_", "-"}


@pytest.mark.parametrize("text", BAD)
def test_bad_session_ids_are_refused(text: str) -> None:
    with pytest.raises(InvalidSessionIdError):
        parse_session_id(text)


@pytest.mark.parametrize("text", BAD)
def test_bad_tenants_are_refused(text: str) -> None:
    with pytest.raises(InvalidTenantError):
        parse_tenant(text)


@pytest.mark.parametrize("parse", [parse_session_id, parse_tenant])
@given(text=st.text(max_size=70) | st.text(f"{ALNUM}_-./\n", max_size=70))
@example(text="a" * 64)
@example(text="a\n")
def test_exactly_the_slugs_are_accepted(parse: Callable[[str], str], text: str) -> None:
    if allowed(text):
        assert parse(text) == text
    else:
        with pytest.raises(InvalidInputError):
            parse(text)


@given(text=st.text(max_size=400))
def test_a_refusal_shows_no_control_character(text: str) -> None:
    if allowed(text):
        return
    with pytest.raises(InvalidSessionIdError) as refused:
        parse_session_id(text)
    assert all(character.isprintable() for character in refused.value.message)
    assert len(refused.value.message) < 600


@pytest.mark.parametrize("make", [new_session_id, new_operation_id])
def test_made_ids_are_valid_session_ids(make: Callable[[], str]) -> None:
    assert parse_session_id(make()) != make()


def test_the_default_tenant_is_valid() -> None:
    assert parse_tenant(DEFAULT_TENANT) == DEFAULT_TENANT


def test_hex_ids_are_told_from_others() -> None:
    assert is_hex_id(new_hex_id())


@given(text=st.text("0123456789abcdefABCDEF\ng", max_size=40))
def test_only_32_lower_hex_digits_are_a_hex_id(text: str) -> None:
    assert is_hex_id(text) == bool(re.fullmatch(r"[0-9a-f]{32}", text))
