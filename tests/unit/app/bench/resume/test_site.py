from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sessiond.app.bench.resume import entrants
from sessiond.app.bench.resume.ask import Answer, WrongTokenError, require_close, require_same
from sessiond.app.bench.resume.options import CONTESTANTS, OURS, RECOMPUTE
from sessiond.app.bench.resume.sessions import Context
from sessiond.app.bench.resume.site import (
    Site,
    example_transfer,
    fs_transfer,
    kv_token_bytes,
    lmcache_transfer,
    rival_options,
)

CONTEXT = Context("session", (1, 2, 3))


def site(folder: Path) -> Site:
    """Return a site whose longest context has 7,936 tokens."""
    return Site(folder, folder / "model", 23_040, 7936, Path("/usr/bin/python3"))


def test_memory_holds_two_of_the_longest_contexts_and_not_three(tmp_path: Path) -> None:
    session_bytes = 7936 * 23_040
    for budget_bytes in (site(tmp_path).kv_bytes, site(tmp_path).ram_bytes):
        assert 2 * session_bytes < budget_bytes < 3 * session_bytes


def test_the_kv_of_a_token_is_read_from_the_model(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_size": 576}))
    assert kv_token_bytes(tmp_path) == 23_040


def test_everybody_has_the_same_engine_but_for_the_transfer(tmp_path: Path) -> None:
    place = site(tmp_path)
    plain = rival_options(place, None)
    for transfer in (fs_transfer(place, tmp_path), example_transfer(tmp_path), lmcache_transfer(5)):
        *same, name, text = rival_options(place, transfer)
        assert (tuple(same), name) == (plain, "--kv-transfer-config")
        assert json.loads(text) == {"kv_role": "kv_both", **transfer}


def test_contestants_have_folders_of_their_own_and_start_nothing(tmp_path: Path) -> None:
    made = [entrants.make(name, site(tmp_path), CONTESTANTS) for name in CONTESTANTS]
    assert [one.name for one in made] == list(CONTESTANTS)
    assert len({one.folder for one in made}) == len(made)
    assert [one.name for one in made if not one.keeps] == [RECOMPUTE]
    assert all(one.processes() == [] for one in made if one.name not in OURS)
    for one in made:
        one.close()
    assert list(tmp_path.iterdir()) == []


def answer(token: int, **logprobs: float) -> Answer:
    """Return an answer with these log-probabilities."""
    return Answer(0.1, 0.0, (token,), (logprobs,), 0, {})


def test_a_restored_token_is_exactly_the_one_from_vram() -> None:
    require_same("us", CONTEXT, answer(5, a=-1.0, b=-2.0), answer(5, a=-1.0, b=-2.0))
    for other in (answer(6, a=-1.0, b=-2.0), answer(5, a=-1.0, b=-2.0001)):
        with pytest.raises(WrongTokenError, match="us, session"):
            require_same("us", CONTEXT, other, answer(5, a=-1.0, b=-2.0))


def test_the_token_that_differs_is_told() -> None:
    steps = ({"a": -1.0}, {"b": -2.0})
    reference = replace(answer(5, a=-1.0), tokens=(5, 6), steps=steps)
    require_same("us", CONTEXT, replace(reference, seconds=9.0), reference)
    for other in (
        replace(reference, tokens=(5, 7)),
        replace(reference, steps=({"a": -1.0}, {"b": -2.5})),
        replace(reference, tokens=(5,), steps=steps[:1]),
    ):
        with pytest.raises(WrongTokenError, match=r"token 1 is \[.*\], in VRAM \[\(6, "):
            require_same("us", CONTEXT, other, reference)


@pytest.mark.parametrize(
    ("found", "close"),
    [
        (answer(6, a=-1.05, b=-1.02), True),  # a near tie that another batch decides otherwise
        (answer(5, a=-1.0, c=-2.5), True),
        (answer(5, a=-1.3, b=-2.0), False),
        (answer(5, d=-1.0), False),
    ],
)
def test_beside_others_it_is_the_same_within_a_tolerance(found: Answer, close: bool) -> None:  # noqa: FBT001 - a table
    reference = answer(5, a=-1.0, b=-1.06)
    if close:
        require_close("us", CONTEXT, found, reference)
    else:
        with pytest.raises(WrongTokenError):
            require_close("us", CONTEXT, found, reference)
