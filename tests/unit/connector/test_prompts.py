from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sessiond.connector.prompts import Prompts

TEMPLATE = "{{ messages }}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def prompts(folder: Path) -> Prompts:
    return Prompts(folder, folder)


def write(path: Path, value: Any) -> None:  # noqa: ANN401 - any JSON value
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def test_no_template_has_no_digest(prompts: Prompts) -> None:
    assert prompts.template_digest(None) == ""


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.jinja", TEMPLATE),
        ("additional_chat_templates/tool_use.jinja", TEMPLATE),
        ("chat_template.json", {"chat_template": TEMPLATE}),
        ("tokenizer_config.json", {"chat_template": TEMPLATE}),
        ("processor_config.json", {"chat_template": TEMPLATE}),
    ],
)
def test_a_template_counts_by_its_text_wherever_it_lies(
    prompts: Prompts, folder: Path, name: str, content: object
) -> None:
    write(folder / name, content)
    assert prompts.template_digest(None) == prompts.template_digest(TEMPLATE) != ""
    assert folder / name in prompts.files()


def test_a_given_template_counts_alone(prompts: Prompts, folder: Path) -> None:
    before = prompts.template_digest("given")
    write(folder / "chat_template.jinja", TEMPLATE)
    assert prompts.template_digest("given") == before


def test_each_of_several_templates_counts(prompts: Prompts, folder: Path) -> None:
    several = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    write(folder / "tokenizer_config.json", {"chat_template": several})
    before = prompts.template_digest(None)
    several[1]["template"] = "c"
    write(folder / "tokenizer_config.json", {"chat_template": several})
    assert prompts.template_digest(None) != before


@pytest.mark.parametrize("data", [b"\xff\xfe{{ messages }}", b""])
def test_a_template_of_any_bytes_has_a_digest(prompts: Prompts, folder: Path, data: bytes) -> None:
    (folder / "chat_template.jinja").write_bytes(data)
    assert len(prompts.template_digest(None)) == 64


@pytest.mark.parametrize("content", ["no json", "[1]", '{"a": NaN}', '{"a": "\\ud800"}', "\x00"])
def test_settings_of_any_content_count(prompts: Prompts, folder: Path, content: str) -> None:
    before = prompts.tokenizer_settings("auto")
    write(folder / "tokenizer_config.json", content)
    assert prompts.tokenizer_settings("auto") != before


def test_where_a_tokenizer_lay_does_not_count(prompts: Prompts, folder: Path) -> None:
    write(folder / "tokenizer_config.json", {"tokenizer_file": "/a", "name_or_path": "a"})
    before = prompts.tokenizer_settings("auto")
    write(folder / "tokenizer_config.json", {"tokenizer_file": "/b", "name_or_path": "b"})
    assert prompts.tokenizer_settings("auto") == before
