"""The README's examples are short, and those in Python work."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from agents import Agent, set_tracing_disabled
from langchain_core.messages import AnyMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

from sessiond.client import Client
from sessiond.testing.served import ServedWorld, served_world

_README = (Path(__file__).parents[2] / "README.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", _README, re.MULTILINE | re.DOTALL)
CURLS = re.findall(r"^    curl .*?[^\\]$", _README, re.MULTILINE | re.DOTALL)
MAX_LINES = 9


class Talk(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def build(model: Any) -> Any:  # noqa: ANN401 - LangGraph's own generics
    def speak(state: Talk) -> Any:  # noqa: ANN401 - an update
        return {"messages": [model.invoke(state["messages"])]}

    builder = StateGraph(Talk)
    builder.add_node("speak", speak)
    builder.add_edge(START, "speak")
    return builder.compile(checkpointer=InMemorySaver())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedWorld]:
    with served_world(tmp_path_factory.mktemp("served")) as served:
        listening = served.portal.wrap_async_context_manager(served.world.listening_engine())
        with listening:
            yield served


def test_each_is_short() -> None:
    assert len(EXAMPLES) == 4
    assert len(CURLS) >= 3
    for example in (*EXAMPLES, *CURLS):
        assert len(example.splitlines()) <= MAX_LINES, example


def test_they_work_in_their_order(
    served: ServedWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    set_tracing_disabled(True)
    # What an example takes from the reader's own program.
    names: dict[str, Any] = {
        "build": build,
        "agent": Agent(name="clerk", model="smol", instructions="Be kind. " * 40),
    }
    for example in EXAMPLES:
        text = example.replace("http://localhost:8600", served.url).replace("MODEL", "smol")
        text = text.replace('"Hello"', repr("Hello. " * 60))
        code = compile(text, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        done = eval(code, names)  # a coroutine, if the example awaits
        if inspect.isawaitable(done):
            asyncio.run(wait(done))
    names["openai"].close()
    assert "SuspendReport(" in capsys.readouterr().out
    with Client(served.url) as client:
        kinds = [event.kind for event in client.events("agent-7")]
    assert kinds.count("turn") >= 3
    assert kinds.count("suspended") == 1


async def wait(done: Any) -> None:  # noqa: ANN401 - an awaitable
    await done
