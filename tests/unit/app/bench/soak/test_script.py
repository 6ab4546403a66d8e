from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from sessiond.app.bench.soak import texts
from sessiond.app.bench.soak.model import kept_as
from sessiond.app.bench.soak.script import Deed, Kind, Way, script, timeline


def test_the_seed_decides_what_an_agent_does() -> None:
    first, again = (list(islice(script(7, 0), 300)) for _ in range(2))
    assert first == again
    assert first != list(islice(script(8, 0), 300))
    assert first != list(islice(script(7, 1), 300))


def test_every_kind_and_way_comes_soon() -> None:
    steps = list(islice(script(1, 0), 200))
    assert {step.kind for step in steps} == set(Kind)
    assert {step.way for step in steps} == set(Way)
    assert Counter(step.kind for step in steps).most_common(1)[0][0] is Kind.TURN
    assert all(0 <= step.place < 1 and 0 <= step.text < 1 for step in steps)


@pytest.mark.parametrize(
    ("minutes", "daemons", "engines", "rests"), [(1, 1, 1, 1), (4, 1, 2, 2), (10, 3, 5, 2)]
)
def test_the_conductor_leaves_time_before_the_end(
    minutes: int, daemons: int, engines: int, rests: int
) -> None:
    moments = timeline(minutes * 60)
    deeds = [moment.deed for moment in moments]
    assert [deeds.count(deed) for deed in Deed] == [daemons, engines, rests]
    assert moments == sorted(moments, key=lambda moment: moment.at_s)
    assert moments[-1].at_s <= minutes * 60 * 3 / 4
    # What the last daemon holds is noted after its start, and it lives for half of the time.
    last = max(moment.at_s for moment in moments if moment.deed is Deed.KILL_DAEMON)
    assert last <= minutes * 60 / 2
    assert any(moment.deed is Deed.REST and moment.at_s > last for moment in moments)


def test_conversations_begin_alike_and_go_on_differently() -> None:
    one, other = texts.opening("soak-0-1", 0.1), texts.opening("soak-0-2", 0.9)
    assert one[0] == other[0]
    assert len(one[0]["content"]) > 400
    assert one[1]["content"][-1000:] != other[1]["content"][-1000:]
    assert texts.question(0.0) != texts.question(0.999)
    assert len(texts.question(0.999)) == len(texts.question(0.0))


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("model.layers.27.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight"),
        ("model.layers.3.mlp.up_proj.weight", ""),
        ("model.embed_tokens.weight", "model.embed_tokens.weight"),
    ],
)
def test_the_short_model_has_the_first_and_the_last_layers(name: str, kept: str) -> None:
    assert kept_as(name) == kept
