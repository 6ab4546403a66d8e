from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.errors import ConfigurationError
from sessiond.domain.ids import SessionId, TenantId
from sessiond.domain.keys import KeyRing, salt_hash

RING = KeyRing.from_server_key(bytes(range(32)))
OTHER = KeyRing.from_server_key(bytes(range(1, 33)))
NAMES = st.text("abc", min_size=1, max_size=4)


@pytest.mark.parametrize("length", [0, 16, 31, 33, 64])
def test_a_key_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ConfigurationError):
        KeyRing.from_server_key(bytes(length))


def test_each_purpose_has_its_own_key() -> None:
    derived = [getattr(RING, field.name)[:16] for field in fields(RING)]
    assert len(set(derived)) == len(derived)


def test_another_server_key_changes_every_key() -> None:
    assert [f.name for f in fields(RING) if getattr(RING, f.name) == getattr(OTHER, f.name)] == []


def test_derivation_is_fixed_for_ever() -> None:
    # Files on disk are named and sealed with these: a change makes every store unreadable.
    assert RING.key_id.hex() == KEY_ID
    assert RING.tenant_name(TenantId("acme")) == ACME


KEY_ID = "28386b10776916518032e2e9b13695e6"
ACME = "8ba9247d0aa087b95c271391d7b3a596"


def test_the_ring_shows_no_key() -> None:
    assert RING.seal_key.hex() not in repr(RING)
    assert repr(RING.seal_key) not in repr(RING)


@given(tenants=st.tuples(NAMES, NAMES), sessions=st.tuples(NAMES, NAMES))
def test_names_differ_wherever_tenant_or_session_differ(
    tenants: tuple[str, str], sessions: tuple[str, str]
) -> None:
    # Without a length before each part, ("ab", "c") and ("a", "bc") would meet.
    pairs = list(zip(tenants, sessions, strict=True))
    first, second = (RING.session_name(TenantId(t), SessionId(s)) for t, s in pairs)
    assert (first == second) == (pairs[0] == pairs[1])


@given(tenants=st.tuples(NAMES, NAMES), adapters=st.tuples(NAMES, NAMES))
def test_salts_differ_wherever_tenant_or_adapter_differ(
    tenants: tuple[str, str], adapters: tuple[str, str]
) -> None:
    pairs = list(zip(tenants, adapters, strict=True))
    first, second = (RING.cache_salt(TenantId(t), a) for t, a in pairs)
    assert (first == second) == (pairs[0] == pairs[1])


def test_names_of_different_kinds_never_meet() -> None:
    tenant = TenantId("a")
    made = {
        RING.tenant_name(tenant),
        RING.session_name(tenant, SessionId("a")),
        RING.cache_salt(tenant),
        RING.cache_salt(tenant, "a"),
    }
    assert len(made) == 4


def test_an_engine_that_stores_with_loss_has_salts_of_its_own() -> None:
    tenant = TenantId("acme")
    salts = {RING.cache_salt(tenant, adapter, way) for adapter in ("", "a") for way in ("", "fp8")}
    assert len(salts) == 4
    assert RING.cache_salt(tenant, "", "") == RING.cache_salt(tenant)


@given(salt=st.text(max_size=80))
def test_a_salts_hash_is_short_hex_and_not_the_salt(salt: str) -> None:
    if any(0xD800 <= ord(character) < 0xE000 for character in salt):
        return  # no text that JSON over HTTP can carry
    hashed = salt_hash(salt)
    assert len(hashed) == 32
    assert set(hashed) <= set("0123456789abcdef")
    assert hashed != salt
