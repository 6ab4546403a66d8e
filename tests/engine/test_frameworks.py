"""Agents of real frameworks go on after their engine was killed, as if nothing had happened."""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, TypedDict

import pytest
from agents import Agent as OpenAiAgent
from agents import (
    ModelSettings,
    RunConfig,
    Runner,
    RunResult,
    SQLiteSession,
    function_tool,
)
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

from sessiond.client import AsyncClient, Client
from sessiond.integrations.langgraph import SessionCallbacks, ThreadChatOpenAI, thread_model
from sessiond.integrations.openai_agents import SessionRunner
from sessiond.testing.stack import SERVED_NAME, Stack
from sessiond.testing.texts import real_text

#: The conversations are longer.
CONTEXT_TOKENS = 1400
RULES = "You are a clerk. This is your manual.\n" + real_text(5000)
#: Long enough for chunks of its own, and shorter than half of the conversation.
TITLE = "Write a title for this text.\n" + real_text(7200)[6000:]
TEMPLATE = (
    "{% for tool in tools or [] %}<|im_start|>tool\n{{ tool | tojson }}<|im_end|>\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name }}"
    "{{ call.function.arguments | tojson }}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: A resume that runs beside a turn is in its batches, and in bf16 these decide near ties.
WAIT_S = 60.0
#: A call of a tool has more tokens than one would think.
SAMPLING: dict[str, Any] = {"temperature": 0, "max_tokens": 64}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather of a city.",
        "strict": True,  # the model is too small to keep to a schema by itself
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
QUESTION, NEXT_QUESTION = "How is the weather?", "And what does the manual say of loops?"


def weather(city: Literal["Paris", "Oslo", "Rome"]) -> str:
    """Tell the weather of a city."""
    return f"The sun shines over {city}."


class Conversation(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    titles: Annotated[list[str], operator.add]


def clerk(model: ThreadChatOpenAI) -> Any:  # noqa: ANN401 - LangGraph's own generics
    """Return a graph: it calls a tool if a person agrees, and answers; a title is made aside."""
    forced = model.bind_tools([WEATHER], tool_choice="weather")
    free = model.bind_tools([WEATHER], tool_choice="none")

    def think(state: Conversation) -> Any:  # noqa: ANN401 - an update
        return {"messages": [forced.invoke(state["messages"])]}

    def name(_state: Conversation) -> Any:  # noqa: ANN401 - the same
        return {"titles": [str(model.invoke([HumanMessage(TITLE)]).content)]}

    def act(state: Conversation) -> Any:  # noqa: ANN401 - the same
        call = last(state).tool_calls[0]
        assert interrupt("May I?") == "yes"
        return {"messages": [ToolMessage(weather(**call["args"]), tool_call_id=call["id"])]}

    def answer(state: Conversation) -> Any:  # noqa: ANN401 - the same
        return {"messages": [free.invoke(state["messages"])]}

    builder: Any = StateGraph(Conversation)
    for node in (think, name, act, answer):
        builder.add_node(node.__name__, node)
    builder.add_conditional_edges(
        START, lambda state: "answer" if len(state["messages"]) > 2 else "think"
    )
    builder.add_edge("think", "name")
    builder.add_edge("name", "act")
    builder.add_edge("act", "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=InMemorySaver())


def last(state: Conversation) -> AIMessage:
    message = state["messages"][-1]
    assert isinstance(message, AIMessage)
    return message


def said(state: Conversation) -> list[Any]:
    """Return all that the model said, without the names that vLLM makes up."""
    answers = [one for one in state["messages"] if isinstance(one, AIMessage)]
    calls = [(call["name"], call["args"]) for one in answers for call in one.tool_calls]
    return [[one.content for one in answers], calls, state["titles"]]


class GraphStory:
    """A graph's conversation in a thread."""

    def __init__(self, client: Client, thread_id: str, *, is_watched: bool) -> None:
        callbacks = SessionCallbacks(client, suspend_wait_s=WAIT_S, resume_wait_s=WAIT_S)
        model = thread_model(
            client, model=SERVED_NAME, extra_body={"chat_template": TEMPLATE}, **SAMPLING
        )
        self._graph = clerk(model).with_config(callbacks=[callbacks] if is_watched else [])
        self._config = {"configurable": {"thread_id": thread_id}}

    def begin(self) -> None:
        messages = [SystemMessage(RULES), HumanMessage(QUESTION)]
        state = self._graph.invoke({"messages": messages, "titles": []}, self._config)
        assert [one.value for one in state["__interrupt__"]] == ["May I?"]

    def end(self) -> list[Any]:
        self._graph.invoke(Command(resume="yes"), self._config)
        more = {"messages": [HumanMessage(NEXT_QUESTION)]}
        return said(self._graph.invoke(more, self._config))


class RunnerStory:
    """The same with the Agents SDK: a run that waits for an approval."""

    def __init__(self, url: str, session_id: str) -> None:
        self._session_id, self._url = session_id, url
        self._memory = SQLiteSession(session_id)
        self._agent = OpenAiAgent(
            name="clerk",
            instructions=RULES,
            model=SERVED_NAME,
            tools=[function_tool(weather, needs_approval=True)],
            model_settings=ModelSettings(
                tool_choice="weather", extra_body={"chat_template": TEMPLATE}, **SAMPLING
            ),
        )
        self._begun: RunResult | None = None

    async def _run(self, client: AsyncClient, given: Any, *, is_watched: bool) -> RunResult:  # noqa: ANN401 - Runner's
        config = RunConfig(tracing_disabled=True)
        async with SessionRunner(client, suspend_wait_s=WAIT_S, resume_wait_s=WAIT_S) as runner:
            if is_watched:
                return await runner.run(
                    self._agent, given, self._session_id, run_config=config, session=self._memory
                )
            config = runner.config(self._session_id, config)
            return await Runner.run(self._agent, given, run_config=config, session=self._memory)

    async def begin(self, *, is_watched: bool) -> None:
        async with AsyncClient(self._url) as client:
            self._begun = await self._run(client, QUESTION, is_watched=is_watched)
        assert [one.tool_name for one in self._begun.interruptions] == ["weather"]

    async def end(self, *, is_watched: bool) -> list[Any]:
        assert self._begun is not None
        state = self._begun.to_state()
        state.approve(self._begun.interruptions[0])
        async with AsyncClient(self._url) as client:
            first = await self._run(client, state, is_watched=is_watched)
            self._agent.model_settings.tool_choice = "none"
            second = await self._run(client, NEXT_QUESTION, is_watched=is_watched)
        self.close()
        return [first.final_output, second.final_output]

    def close(self) -> None:
        self._memory.close()


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with Client(f"http://127.0.0.1:{stack.daemon_port}") as client:
        yield client


def test_a_graph_and_a_run_go_on_after_the_engine_was_killed(
    stack: Stack, client: Client, kill_engine: Callable[[], None]
) -> None:
    stack.clear_vram()
    # The first ones compute the beginning, so that both others find the same in VRAM: what is
    # computed in other batches may end otherwise.
    GraphStory(client, "thread-first", is_watched=False).begin()
    first_run = RunnerStory(client.url, "run-first")
    asyncio.run(first_run.begin(is_watched=False))
    first_run.close()
    plain_graph = GraphStory(client, "thread-plain", is_watched=False)
    plain_run = RunnerStory(client.url, "run-plain")
    plain_graph.begin()
    asyncio.run(plain_run.begin(is_watched=False))
    expected = [plain_graph.end(), asyncio.run(plain_run.end(is_watched=False))]

    graph = GraphStory(client, "thread-1", is_watched=True)
    run = RunnerStory(client.url, "run-1")
    graph.begin()
    asyncio.run(run.begin(is_watched=True))
    for session_id in ("thread-1", "run-1"):
        session = client.get_session(session_id)
        assert session.state == "suspended"
        # The conversation was put away, not the title that came after it.
        assert session.snapshot is not None
        assert session.snapshot.tokens_total > CONTEXT_TOKENS
    kill_engine()

    assert [graph.end(), asyncio.run(run.end(is_watched=True))] == expected
    # Four turns with the title, and three.
    for session_id, plain_id, turns in (("thread-1", "thread-plain", 4), ("run-1", "run-plain", 3)):
        (resumed,) = (one for one in client.events(session_id) if one.kind == "resumed")
        assert resumed.detail["outcome"] == "restored"
        # No token more was computed than without the interruption.
        without = computed(client, plain_id, turns)
        assert len(without) == turns
        assert computed(client, session_id, turns) == without


def computed(client: Client, session_id: str, at_least: int) -> list[int]:
    """Return how many tokens of its prompt each turn computed, when so many are written down.

    A turn is written down after its answer, at the latest by the next sweep.
    """
    deadline_s = time.monotonic() + 60
    while True:
        turns = [one for one in client.events(session_id) if one.kind == "turn"]
        if len(turns) >= at_least or time.monotonic() > deadline_s:
            return [one.detail["computed_tokens"] for one in turns]
        time.sleep(0.2)
