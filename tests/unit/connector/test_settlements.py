from __future__ import annotations

from sessiond.connector.settlements import Settlements, answer
from sessiond.domain.reasons import Cause, Reason
from sessiond.testing.fake_mover import FakeClock

BUSY = Cause(Reason.TURN_IN_FLIGHT)


def test_a_settlement_is_taken_once() -> None:
    settlements = Settlements()
    settlements.settle("op", {"x": 1}, [BUSY])
    taken = settlements.take("op")
    assert taken is not None
    assert (taken.facts, taken.causes) == ({"x": 1}, (BUSY,))
    assert settlements.take("op") is None


def test_the_first_settlement_stands() -> None:
    settlements = Settlements()
    settlements.settle("op", {"x": 1}, [])
    settlements.settle_lost("op", [BUSY])
    taken = settlements.take("op")
    assert taken is not None
    assert taken.facts == {"x": 1}


def test_a_lost_suspend_left_nothing() -> None:
    settlements = Settlements()
    settlements.settle_lost("op", [BUSY])
    taken = settlements.take("op")
    assert taken is not None
    assert taken.facts == {"committed": False, "available_tokens": 0}


def test_whether_it_is_settled_can_be_asked_without_taking() -> None:
    settlements = Settlements()
    settlements.settle("op", {}, [])
    assert "op" in settlements
    assert "op" in settlements
    assert "other" not in settlements


def test_what_nobody_takes_is_forgotten(clock: FakeClock) -> None:
    settlements = Settlements()
    settlements.settle("old", {}, [])
    clock.sleep(601)
    settlements.settle("new", {}, [])
    assert ("old" in settlements, "new" in settlements) == (False, True)


def test_an_answer_names_engine_operation_and_facts() -> None:
    assert answer("e", "turn", {"generation": 4}, [], ok=False) == {
        "sessiond": {"engine_id": "e", "op": "turn", "ok": False, "causes": [], "generation": 4}
    }


def test_an_answer_tells_each_cause_once_in_order() -> None:
    unhashable = Cause(Reason.KV_GROUPS_MISMATCH, stored=[1], live=[2])
    told = answer("e", "turn", {}, [BUSY, unhashable, BUSY, unhashable])["sessiond"]["causes"]
    assert [cause["reason"] for cause in told] == ["turn_in_flight", "kv_groups_mismatch"]
