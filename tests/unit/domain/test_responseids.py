from __future__ import annotations

from sessiond.domain.ids import TenantId
from sessiond.domain.keys import KeyRing
from sessiond.domain.responseids import engine_of, has_form, is_owned, new_response_id

KEYS = KeyRing.from_server_key(bytes(range(32)))
A, B = TenantId("a"), TenantId("b")


def test_an_id_says_whose_it_is_and_where() -> None:
    named = new_response_id(KEYS, A, "engine-1")
    assert has_form(named)
    assert is_owned(KEYS, A, named)
    assert engine_of(named, ["engine-2", "engine-1"]) == "engine-1"
    assert engine_of(named, ["engine-2"]) is None
    assert new_response_id(KEYS, A, "engine-1") != named


def test_nobody_else_owns_it() -> None:
    named = new_response_id(KEYS, A, "engine-1")
    assert not is_owned(KEYS, B, named)
    assert not is_owned(KeyRing.from_server_key(bytes(32)), A, named)
    for at in range(5, len(named)):
        other = named[:at] + ("0" if named[at] != "0" else "1") + named[at + 1 :]
        assert not is_owned(KEYS, A, other), at


def test_other_ids_have_not_the_form() -> None:
    for other in ("", "resp_", "resp_" + "0" * 55, "resp_" + "0" * 57, "chatcmpl-" + "0" * 56):
        assert not has_form(other)
        assert not is_owned(KEYS, A, other)
        assert engine_of(other, ["engine-1"]) is None
