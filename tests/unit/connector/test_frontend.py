"""Which command lines are the server's, and worth reading; see tests/engine for the reading."""

from __future__ import annotations

import pytest

from sessiond.connector import frontend
from sessiond.connector.frontend import Frontend, read_frontend, server_options

_MODULE = "/env/site-packages/vllm/entrypoints/openai/api_server.py"


@pytest.mark.parametrize(
    ("argv", "options"),
    [
        ([_MODULE, "--port", "1"], ["--port", "1"]),
        (["/env/vllm/entrypoints/cli/main.py", "serve", "m", "--port", "1"], ["m", "--port", "1"]),
        (["/env/bin/vllm", "serve", "m"], ["m"]),
        (["vllm", "serve", "m"], ["m"]),
        (["/env/bin/vllm", "bench", "serve"], []),
        (["/usr/bin/pytest", "--chat-template", "x"], []),
        (["notvllm", "serve", "m"], []),
        (["-c"], []),
        ([], []),
    ],
)
def test_only_the_servers_own_command_line_is_read(argv: list[str], options: list[str]) -> None:
    assert server_options(argv) == options


def test_without_a_telling_option_no_parser_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    monkeypatch.setattr(frontend, "_parser", lambda: built.append(1))
    assert read_frontend([_MODULE, "--model", "m", "--enforce-eager"]) == Frontend()
    assert not built
    read_frontend([_MODULE, "--model", "m", "--lora-modules", "a=/a"])
    assert built


def test_this_process_was_started_by_no_server() -> None:
    assert read_frontend() == Frontend()
