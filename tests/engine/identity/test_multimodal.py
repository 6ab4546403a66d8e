"""A model that sees images: sessions of text are kept, and turns with images are not."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sessiond.testing.agent import Agent, ChatMessages
from sessiond.testing.identity_report import IdentityReport
from sessiond.testing.stack import Stack
from sessiond.testing.texts import continued, opening
from sessiond.testing.tiny_vision import IMAGE_PIXELS, IMAGE_TOKENS, build_tiny_vision_model

MODELS = Path(__file__).parents[3] / ".cache" / "models"
OPTIONS = ("--ram-tier-bytes", str(128 << 20), "--limit-mm-per-prompt", '{"image": 1}')
ENV = {"VLLM_CPU_KVCACHE_SPACE": "1"}
TOKENS = 16


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("images")) as running:
        running.start_daemon()
        running.start_engine(build_tiny_vision_model(MODELS), OPTIONS, ENV)
        yield running


@pytest.fixture
def agent(stack: Stack, request: pytest.FixtureRequest) -> Iterator[Agent]:
    made = Agent(request.node.name.replace("_", "-")[:40], stack.daemon_port, stack.engine_port)
    made.create_session()
    yield made
    made.close()


def picture(*colour: int) -> str:
    """Return an image of one colour as a data URL."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    header = struct.pack(">IIBBBBB", IMAGE_PIXELS, IMAGE_PIXELS, 8, 2, 0, 0, 0)
    rows = (b"\0" + bytes(colour) * IMAGE_PIXELS) * IMAGE_PIXELS
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(parts)
    return "data:image/png;base64," + base64.b64encode(png).decode()


def seen(before: ChatMessages, *colour: int) -> list[Mapping[str, Any]]:
    """Return a conversation that goes on with an image."""
    image = {"type": "image_url", "image_url": {"url": picture(*colour)}}
    question = {"type": "text", "text": "What do you see? " * 60}
    return [*before, {"role": "user", "content": [image, question]}]


def asked(agent: Agent, messages: ChatMessages, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - any field of vLLM
    return agent.chat(messages, max_tokens=TOKENS, ignore_eos=True, **fields)


def ticketed(agent: Agent, messages: ChatMessages) -> dict[str, Any]:
    ticket = agent.ticket()
    given = {name: ticket[name] for name in ("cache_salt", "kv_transfer_params")}
    return asked(agent, messages, **given)


def reply(answer: dict[str, Any]) -> list[int]:
    return list(answer["choices"][0]["token_ids"])


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_two_images_with_the_same_text_never_share_and_are_not_kept(agent: Agent) -> None:
    before = opening(agent.session_id, 600)
    first = ticketed(agent, before)
    before_image = len(first["prompt_token_ids"])
    red, blue = seen(before, 250, 0, 0), seen(before, 0, 0, 250)

    of_red, of_blue = ticketed(agent, red), ticketed(agent, blue)

    (cause,) = of_red["kv_transfer_params"]["sessiond"]["causes"]
    assert cause["reason"] == "not_text"
    assert of_red["prompt_token_ids"].count(5) == IMAGE_TOKENS
    assert of_red["prompt_token_ids"] == of_blue["prompt_token_ids"]
    assert reply(of_red) != reply(of_blue)
    assert cached(of_blue) < before_image
    for image, answer in ((red, of_red), (blue, of_blue)):
        assert reply(asked(agent, image, cache_salt=f"fresh {id(image)}")) == reply(answer)
        assert reply(ticketed(agent, image)) == reply(answer)

    assert agent.show_when(lambda shown: bool(shown["unkept"]))["unkept"] == "not_text"
    refused = agent.try_call("POST", f"/v1/sessions/{agent.session_id}/suspend")
    assert (refused.status_code, refused.json()["code"]) == (422, "not_text")
    ticketed(agent, continued(before, "A colour.", "Forget it."))
    assert agent.show_when(lambda shown: not shown["unkept"])["unkept"] == ""
    assert agent.suspend()["missing_tokens"] == 0


def test_a_session_of_text_comes_back_after_the_engine_was_killed(
    agent: Agent, stack: Stack, report: IdentityReport
) -> None:
    before = opening(agent.session_id, 900)
    first = ticketed(agent, before)
    messages = continued(before, first["choices"][0]["message"]["content"])
    salt = agent.ticket()["cache_salt"]
    uninterrupted = asked(agent, messages, cache_salt=salt)
    stored = agent.suspend()["snapshot"]["tokens_restorable"]
    stack.engine.kill()
    stack.start_engine(build_tiny_vision_model(MODELS), OPTIONS, ENV)

    resumed = agent.resume()
    turn = ticketed(agent, messages)

    assert (resumed["outcome"], resumed["tokens_restored"]) == ("restored", stored)
    assert cached(turn) == cached(uninterrupted) > 128
    assert reply(turn) == reply(uninterrupted)
    report.architecture("text on a model that sees images (BLIP-2)", "golden")
