"""The client knows what the daemon answers: neither may change without the other."""

from __future__ import annotations

import inspect
from contextlib import suppress
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from sessiond.api import models, models_engines, models_sweeps, models_turns
from sessiond.app.config import Settings
from sessiond.client import NotSessiondError, answers, answers_engines, connecting
from sessiond.client.decoding import decode
from sessiond.client.options import SessionChanges, SessionOptions

#: Each class of the client, and the model that the daemon answers with.
PAIRS: dict[type[Any], type[BaseModel]] = {
    answers.Cause: models.CauseOut,
    answers.Snapshot: models.SnapshotOut,
    answers.Presence: models.PresenceOut,
    answers.LastTurn: models.LastTurnOut,
    answers.Timing: models.TimingOut,
    answers.Origin: models.OriginOut,
    answers.Session: models.SessionOut,
    answers.SessionPage: models.SessionsOut,
    answers.Snapshots: models.SnapshotsOut,
    answers.SuspendReport: models.SuspendOut,
    answers.ResumeReport: models.ResumeOut,
    answers.DeleteReport: models.DeleteOut,
    answers.Operation: models.OperationOut,
    answers.Events: models.EventsOut,
    answers.Ticket: models_turns.TicketOut,
    answers.TicketEngine: models_turns.TicketEngineOut,
    answers.Continuation: models_turns.ContinuationOut,
    answers.Mismatch: models_turns.MismatchOut,
    answers.Probe: models_turns.ProbeOut,
    answers_engines.Adapter: models_engines.AdapterOut,
    answers_engines.KvKind: models_engines.KvKindOut,
    answers_engines.SlowPath: models_engines.SlowPathOut,
    answers_engines.Engine: models_engines.EngineOut,
    answers_engines.Stranger: models_engines.StrangerOut,
    answers_engines.Engines: models_engines.EnginesOut,
    answers_engines.Saved: models_engines.SavedOut,
    answers_engines.Unsaved: models_engines.UnsavedOut,
    answers_engines.DrainReport: models_engines.DrainOut,
    answers_engines.Undrained: models_engines.UndrainOut,
    answers_engines.Pause: models_sweeps.PauseOut,
    answers_engines.Unpaused: models_sweeps.UnpauseOut,
}


@pytest.mark.parametrize("kind", PAIRS)
def test_the_fields_are_the_daemon_s(kind: type[Any]) -> None:
    assert {one.name for one in fields(kind)} == set(PAIRS[kind].model_fields)


@pytest.mark.parametrize("kind", PAIRS)
def test_what_may_be_null_may_be_none(kind: type[Any]) -> None:
    told = {name: one.annotation for name, one in PAIRS[kind].model_fields.items()}
    known = get_type_hints(kind)
    nullable = {name for name, hint in told.items() if NoneType in get_args(hint)}
    free = {name for name, hint in known.items() if hint is Any}
    assert {name for name, hint in known.items() if NoneType in get_args(hint)} == nullable - free


def test_every_answer_has_its_model() -> None:
    classes = {
        kind
        for module in (answers, answers_engines)
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if kind.__module__ == module.__name__
    }
    # An event of a stream tells its session, too.
    assert classes - PAIRS.keys() == {answers.Event}
    told = set(models.EventOut.model_fields) | {"session_id"}
    assert {one.name for one in fields(answers.Event)} == told


def test_options_are_the_daemon_s() -> None:
    made = set(models.SessionIn.model_fields) - {"session_id"}
    assert set(get_type_hints(SessionOptions)) == made
    assert set(get_type_hints(SessionChanges)) == set(models.SessionPatch.model_fields)


def test_the_default_url_is_where_the_daemon_listens() -> None:
    listens = {name: Settings.model_fields[name].default for name in ("host", "port")}
    assert "http://{host}:{port}".format(**listens) == connecting.DEFAULT_URL


@dataclass(frozen=True)
class Inner:
    number: int


@dataclass(frozen=True)
class Outer:
    text: str
    seconds: float
    flag: bool
    inner: Inner | None
    many: tuple[Inner, ...]
    any: Any
    facts: dict[str, Any]
    later: int = 7


GOOD = {
    "text": "t",
    "seconds": 1,
    "flag": True,
    "inner": {"number": 1, "unknown": 2},
    "many": [{"number": 2}],
    "any": [1],
    "facts": {"a": None},
}


def test_json_becomes_values() -> None:
    wanted = Outer("t", 1.0, bool(1), Inner(1), (Inner(2),), [1], {"a": None})
    assert decode(Outer, {**GOOD, "added_later": 1}) == wanted
    assert decode(Outer, {**GOOD, "inner": None, "later": 8}).later == 8


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"text": 1}, "Outer.text"),
        ({"text": None}, "Outer.text"),
        ({"seconds": "1"}, "Outer.seconds"),
        ({"seconds": True}, "Outer.seconds"),
        ({"flag": 1}, "Outer.flag"),
        ({"inner": []}, "Outer.inner"),
        ({"inner": {}}, "Outer.inner.number"),
        ({"many": {}}, "Outer.many"),
        ({"many": [None]}, "Outer.many"),
        ({"many": [{"number": 1.0}]}, "Outer.many.number"),
        ({"facts": []}, "Outer.facts"),
        ({"later": None}, "Outer.later"),
    ],
)
def test_other_types_are_named(changed: dict[str, Any], where: str) -> None:
    with pytest.raises(NotSessiondError, match=rf"no {where} as"):
        decode(Outer, {**GOOD, **changed})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*sorted(GOOD), "number"]), inner)
    ),
    max_leaves=8,
)


@given(JSON)
def test_no_json_breaks_it(value: object) -> None:
    with suppress(NotSessiondError):
        assert isinstance(decode(Outer, value), Outer)
