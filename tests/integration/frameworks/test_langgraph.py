"""LangGraph with our parts, against the gateway and a fake engine."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AnyMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

from sessiond.client import Client, Operation, SuspendReport
from sessiond.domain.ids import parse_session_id
from sessiond.integrations.langgraph import (
    SessionCallbacks,
    ThreadChatOpenAI,
    session_of_thread,
    thread_model,
)
from tests.integration.frameworks.conftest import ours

if TYPE_CHECKING:
    from sessiond.integrations.suspends import SuspendOutcome
    from sessiond.testing.fake_engine import FakeEngine
    from tests.integration.frameworks.conftest import Gate

LONG = HumanMessage("please " * 60)


class Talk(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


@pytest.fixture
def model(client: Client, engine: FakeEngine) -> ThreadChatOpenAI:
    """A model of that engine's."""
    assert engine.info.model == "smol"
    return thread_model(client, model="smol", max_tokens=8, max_retries=0)


def asking(model: ThreadChatOpenAI) -> Any:  # noqa: ANN401 - LangGraph's own generics
    """Return a graph that speaks, asks a person, and speaks again."""

    def speak(state: Talk) -> Any:  # noqa: ANN401 - an update
        return {"messages": [model.invoke(state["messages"])]}

    def ask(_state: Talk) -> Any:  # noqa: ANN401 - the same
        return {"messages": [HumanMessage(interrupt("Shall I?"))]}

    builder: Any = StateGraph(Talk)
    builder.add_node("speak", speak)
    builder.add_node("ask", ask)
    builder.add_node("again", speak)
    for one, other in ((START, "speak"), ("speak", "ask"), ("ask", "again"), ("again", END)):
        builder.add_edge(one, other)
    return builder.compile(checkpointer=InMemorySaver())


def of(thread_id: object) -> Any:  # noqa: ANN401 - a RunnableConfig
    return {"configurable": {"thread_id": thread_id}}


def kinds(client: Client, session_id: str) -> list[str]:
    return [event.kind for event in client.events(session_id)]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_thread_is_put_away_while_it_waits(
    client: Client, model: ThreadChatOpenAI, *, is_async: bool
) -> None:
    told: list[tuple[str, SuspendOutcome]] = []
    callbacks = SessionCallbacks(
        client,
        suspend_wait_s=20.0,
        resume_wait_s=20.0 if is_async else 0.0,
        on_suspend=lambda *outcome: told.append(outcome),
    )
    graph = asking(model).with_config(callbacks=[callbacks])
    thread = of(f"waiting-{is_async}")

    def run(given: object) -> Any:  # noqa: ANN401 - the graph's state
        return (
            asyncio.run(graph.ainvoke(given, thread)) if is_async else graph.invoke(given, thread)
        )

    session_id = thread["configurable"]["thread_id"]
    run({"messages": [LONG]})
    assert client.get_session(session_id).state == "suspended"
    ((named, outcome),) = told
    assert named == session_id
    assert isinstance(outcome, SuspendReport)
    state = run(Command(resume="yes"))
    assert len(state["messages"]) == 4
    assert kinds(client, session_id)[:3] == ["created", "turn", "suspended"]
    # One that was not waited for may end after the turn.
    resumed = next(client.stream_events(session_id=session_id, kinds=["resumed"], after=0))
    assert resumed.detail["outcome"] == "warm"


def test_a_graph_returns_while_its_suspend_goes_on(
    client: Client, model: ThreadChatOpenAI, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[SuspendOutcome] = []
    callbacks = SessionCallbacks(
        client, suspend_wait_s=0.0, on_suspend=lambda _, outcome: told.append(outcome)
    )
    graph = asking(model).with_config(callbacks=[callbacks])
    graph.invoke({"messages": [LONG]}, of("slow"))
    (outcome,) = told
    assert isinstance(outcome, Operation)
    assert (outcome.session_id, outcome.kind, outcome.has_ended) == ("slow", "suspend", False)
    with caplog.at_level(logging.WARNING):
        state = graph.invoke(Command(resume="yes"), of("slow"))
    assert len(state["messages"]) == 4
    assert ours(caplog) == []  # that it is not away yet is no reason to complain
    gate.open()
    assert client.wait(outcome).status == "succeeded"


def test_one_model_serves_any_number_of_threads(client: Client, model: ThreadChatOpenAI) -> None:
    graph = asking(model)
    for thread_id in ("one", "two", 3, "user:4"):
        graph.invoke({"messages": [LONG]}, of(thread_id))
    known = {one.session_id for one in client.list_sessions()}
    assert {"one", "two", "3", session_of_thread("user:4")} <= known
    assert all("suspended" not in kinds(client, name) for name in ("one", "two", "3"))


# The newest form of events warns that it is one.
@pytest.mark.filterwarnings("ignore:.*is in beta")
def test_every_way_to_call_the_model(client: Client, model: ThreadChatOpenAI) -> None:
    async def collect() -> None:
        await model.ainvoke([LONG], of("ainvoke"))
        async for _ in model.astream([LONG], of("astream")):
            pass
        async for _ in model.astream_events([LONG], of("aevents"), version="v2"):
            pass
        await (await model.astream_events([LONG], of("aevents3"), version="v3")).output

    model.invoke([LONG], of("invoke"))
    list(model.stream([LONG], of("stream")))
    assert model.stream_events([LONG], of("events3"), version="v3").output.content
    model.batch([[LONG]], of("batch"))
    model.bind(stop=["x"]).invoke([LONG], of("bound"))
    model.invoke([LONG], of("x"), extra_headers={"X-Session-Id": "chosen"})
    asyncio.run(collect())
    known = {one.session_id for one in client.list_sessions()}
    assert {"invoke", "stream", "batch", "bound", "chosen", "ainvoke", "astream"} <= known
    assert {"events3", "aevents", "aevents3"} <= known
    assert "x" not in known


def test_a_call_outside_of_a_thread_is_in_no_session(
    client: Client, model: ThreadChatOpenAI
) -> None:
    before = list(client.list_sessions())
    model.invoke([LONG])
    assert list(client.list_sessions()) == before


def test_what_fails_disturbs_no_graph(
    model: ThreadChatOpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    with Client("http://127.0.0.1:9", retries=0) as nobody:
        graph = asking(model).with_config(callbacks=[SessionCallbacks(nobody)])
        with caplog.at_level(logging.WARNING):
            graph.invoke({"messages": [LONG]}, of("troubled"))
            state = graph.invoke(Command(resume="yes"), of("troubled"))
    assert len(state["messages"]) == 4
    first, second = ours(caplog)
    assert ["not suspended" in first, "not resumed" in second] == [True, True]


@pytest.mark.parametrize("thread_id", ["a", "A-1_b", 7, "", "a/b", "ü", "x" * 65, "\ud800", "../x"])
def test_every_thread_has_a_session(thread_id: object) -> None:
    session_id = session_of_thread(thread_id)
    assert parse_session_id(session_id) == session_id
    assert session_of_thread(thread_id) == session_id
    assert session_of_thread(session_id) == session_id
    assert session_of_thread(f"{thread_id}.") != session_id
