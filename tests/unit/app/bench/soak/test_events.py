from __future__ import annotations

import json

import pytest

from sessiond.app.bench.soak.events import Heard
from sessiond.app.bench.soak.turns import outcome_of


def chunk(**fields: object) -> str:
    return f"data: {json.dumps(fields)}"


def test_a_stream_is_heard_to_its_end() -> None:
    heard = Heard()
    one = {
        "delta": {"content": "Yes"},
        "token_ids": [5],
        "logprobs": {"content": [{"logprob": -0.5}]},
    }
    two: dict[str, object] = {"delta": {}, "token_ids": [2], "logprobs": None}
    for line in (
        chunk(prompt_token_ids=[1, 2], choices=[{"delta": {"role": "assistant"}}]),
        "",
        chunk(choices=[one]),
        chunk(choices=[two]),
        chunk(choices=[], usage={}),
    ):
        heard.hear(line)
    assert not heard.ended
    heard.hear("data: [DONE]")
    heard.hear(': sessiond {"plan": "load", "outcome": "restored"}')
    assert heard == Heard((1, 2), [5, 2], [-0.5], ["", "Yes", ""], "restored", ended=True)


def test_a_stream_that_tells_an_error_has_no_end() -> None:
    heard = Heard()
    heard.hear(chunk(error={"message": "EngineCore died", "code": 500}))
    heard.hear("data: [DONE]")
    assert not heard.ended


@pytest.mark.parametrize(
    ("cached", "disk", "outcome"),
    [(0, 0, "recomputed"), (128, 0, "partial"), (256, 0, "warm"), (256, 128, "restored")],
)
def test_a_direct_answer_tells_its_outcome_as_the_gateway_does(
    cached: int, disk: int, outcome: str
) -> None:
    split = {"prompt_tokens": 300, "vram_tokens": cached - disk, "disk_tokens": disk}
    told = {"ok": True, "split": split, "tokens_total": 280, "diverged_at_token": None}
    assert outcome_of({"kv_transfer_params": {"sessiond": told}}) == outcome


def test_an_answer_without_our_part_has_no_known_outcome() -> None:
    assert outcome_of({"kv_transfer_params": None}) == "unknown"
