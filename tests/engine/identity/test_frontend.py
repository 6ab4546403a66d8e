"""The server's command line, as vLLM's own parser understands it."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessiond.connector import frontend
from sessiond.connector.frontend import Frontend, LoraModule, read_frontend

# Importing vLLM's command line warns; what it warns of is torch's.
pytestmark = pytest.mark.filterwarnings("ignore")

_MODULE = "/env/site-packages/vllm/entrypoints/openai/api_server.py"
_MODEL = ["--model", "served"]
_JSON_MODULE = json.dumps({"name": "b", "path": "/adapters/b", "is_3d_lora_weight": True})


@pytest.fixture(autouse=True, scope="module")
def one_parser() -> Iterator[None]:
    """Build the parser once: it takes half a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frontend, "_parser", functools.cache(frontend._parser))
        yield


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--chat-template", "{{ messages }}"], Frontend(chat_template="{{ messages }}")),
        (["--chat_template={{ messages }}"], Frontend(chat_template="{{ messages }}")),
        (
            ["--chat-template-content-format", "openai"],
            Frontend(chat_template_content_format="openai"),
        ),
        (
            ["--default-chat-template-kwargs", '{"enable_thinking": false}'],
            Frontend(chat_template_kwargs={"enable_thinking": False}),
        ),
        (
            ["--default-chat-template-kwargs.enable_thinking", "false"],
            Frontend(chat_template_kwargs={"enable_thinking": False}),
        ),
        (["--cohere-format", "cmd3"], Frontend(chat_template_kwargs={"cohere_format": "cmd3"})),
        (
            ["--lora-modules", "a=/adapters/a", _JSON_MODULE],
            Frontend(
                lora_modules=(
                    LoraModule("a", "/adapters/a"),
                    LoraModule("b", "/adapters/b", fused_experts=True),
                )
            ),
        ),
        (["--enable-lora", "--lora-dtype", "bfloat16"], Frontend()),
    ],
)
def test_each_option_is_understood_as_vllm_does(options: list[str], expected: Frontend) -> None:
    assert read_frontend([_MODULE, *_MODEL, *options]) == expected


def test_a_template_may_be_a_file(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    argv = [_MODULE, *_MODEL, "--chat-template", str(template)]
    assert read_frontend(argv).chat_template == template.read_text()


def test_options_may_come_from_a_configuration_file(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("lora-modules: ['a=/adapters/a']\nchat-template: '{{ x }}'\n")
    argv = ["vllm", "serve", "served", "--config", str(config), "--port", "8001"]
    expected = Frontend(chat_template="{{ x }}", lora_modules=(LoraModule("a", "/adapters/a"),))
    assert read_frontend(argv) == expected


@pytest.mark.parametrize("wrong", [["--lora-modules", "{"], ["--chat-template-content-format"]])
def test_a_line_that_is_not_understood_ends_nothing(wrong: list[str]) -> None:
    assert read_frontend([_MODULE, *_MODEL, *wrong]) == Frontend()
