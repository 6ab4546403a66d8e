"""The Agents SDK with our parts, against the gateway and a fake engine."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from agents import (
    Agent,
    Model,
    ModelResponse,
    ModelSettings,
    RunConfig,
    RunContextWrapper,
    Runner,
    Usage,
    function_tool,
)
from openai.types.responses import Response, ResponseCompletedEvent, ResponseFunctionToolCall

from sessiond.client import AsyncClient, Client, Operation
from sessiond.integrations.openai_agents import SessionHooks, SessionRunner
from tests.integration.frameworks.conftest import ours

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from agents.items import TResponseStreamEvent

    from sessiond.integrations.suspends import SuspendOutcome
    from sessiond.testing.served import ServedWorld
    from tests.integration.frameworks.conftest import Gate

QUIET = RunConfig(tracing_disabled=True)


def clerk() -> Agent[Any]:
    return Agent(name="clerk", instructions="Be kind. " * 40, model="smol")


def inside(
    served: ServedWorld, body: Callable[[AsyncClient, SessionRunner], Awaitable[None]]
) -> None:
    """Run *body* in an event loop of its own."""

    async def run() -> None:
        async with AsyncClient(served.url, retries=0) as client, SessionRunner(client) as runner:
            await body(client, runner)

    asyncio.run(run())


@pytest.mark.usefixtures("engine")
def test_the_session_is_named_for_each_run(served: ServedWorld, client: Client) -> None:
    async def body(_client: AsyncClient, runner: SessionRunner) -> None:
        agent = clerk()
        for session_id in ("run-1", "run-2"):
            await runner.run(agent, "Hello.", session_id, run_config=QUIET)
        streamed = Runner.run_streamed(agent, "Hi.", run_config=runner.config("run-3", QUIET))
        async for _ in streamed.stream_events():
            pass

    inside(served, body)
    for session_id in ("run-1", "run-2", "run-3"):
        assert client.get_session(session_id).state == "active"


def test_what_was_configured_stays(served: ServedWorld) -> None:
    async def body(_client: AsyncClient, runner: SessionRunner) -> None:
        headers = {"X-Other": "1", "X-Session-Id": "old"}
        settings = ModelSettings(temperature=0.5, extra_headers=headers)
        given = RunConfig(workflow_name="mine", model_settings=settings)
        made = runner.config("new", given)
        assert made.workflow_name == "mine"
        assert made.model_settings is not None
        assert made.model_settings.temperature == 0.5
        assert made.model_settings.extra_headers == {"X-Other": "1", "X-Session-Id": "new"}
        assert headers["X-Session-Id"] == "old"

    inside(served, body)


class AsksATool(Model):
    """A model that has a tool called, and says nothing."""

    async def get_response(self, *_: object, **__: object) -> ModelResponse:
        call = ResponseFunctionToolCall(
            arguments="{}", call_id="c-1", name="ask_person", type="function_call"
        )
        return ModelResponse(output=[call], usage=Usage(), response_id="r-1")

    async def stream_response(
        self, *_: object, **__: object
    ) -> AsyncIterator[TResponseStreamEvent]:
        response = Response(
            id="r-1",
            created_at=0,
            model="smol",
            object="response",
            output=[*(await self.get_response()).output],
            parallel_tool_calls=False,
            tool_choice="auto",
            tools=[],
        )
        yield ResponseCompletedEvent(
            response=response, sequence_number=0, type="response.completed"
        )


@pytest.mark.usefixtures("engine")
def test_a_streamed_run_that_waits_for_an_approval_is_put_away(
    served: ServedWorld, client: Client
) -> None:
    tool = function_tool(lambda: "done", name_override="ask_person", needs_approval=True)
    asking = Agent(name="asking", model=AsksATool(), tools=[tool])

    async def streamed(runner: SessionRunner, agent: Agent[Any], given: Any) -> Any:  # noqa: ANN401
        async with runner.run_streamed(agent, given, "streamed", run_config=QUIET) as result:
            async for _ in result.stream_events():
                pass
        return result

    async def body(_: AsyncClient, runner: SessionRunner) -> None:
        await streamed(runner, clerk(), "Hello.")
        assert client.get_session("streamed").state == "active"
        result = await streamed(runner, asking, "Ask.")
        assert client.get_session("streamed").state == "suspended"
        state = result.to_state()
        asking.model = AsksATool()
        await streamed(runner, asking, state)
        resumed = next(client.stream_events(session_id="streamed", kinds=["resumed"], after=0))
        assert resumed.detail["outcome"] in {"warm", "restored"}

    inside(served, body)


@pytest.mark.usefixtures("engine")
def test_a_slow_tool_is_a_time_to_be_away(
    served: ServedWorld, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    context: RunContextWrapper[Any] = RunContextWrapper(None)
    slow, quick = (
        function_tool(lambda: "done", name_override=name) for name in ("ask_person", "add")
    )

    async def body(asynchronous: AsyncClient, runner: SessionRunner) -> None:
        agent = clerk()
        hooks = SessionHooks(asynchronous, "away", ["ask_person"], suspend_wait_s=20.0)
        await runner.run(agent, "Hello.", "away", run_config=QUIET, hooks=hooks)
        await hooks.on_tool_start(context, agent, quick)
        assert client.get_session("away").state == "active"
        await hooks.on_tool_start(context, agent, slow)
        assert client.get_session("away").state == "suspended"
        await hooks.on_tool_end(context, agent, slow, "done")
        resumed = next(client.stream_events(session_id="away", kinds=["resumed"], after=0))
        assert resumed.detail["outcome"] == "warm"
        hooks = SessionHooks(asynchronous, "unknown", ["ask_person"])
        with caplog.at_level(logging.WARNING):
            await hooks.on_tool_start(context, agent, slow)
            await hooks.on_tool_end(context, agent, slow, "done")

    inside(served, body)
    first, second = ours(caplog)
    assert ["not suspended" in first, "not resumed" in second] == [True, True]


def test_a_slow_tool_begins_while_the_suspend_goes_on(
    served: ServedWorld, client: Client, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    context: RunContextWrapper[Any] = RunContextWrapper(None)
    tool = function_tool(lambda: "done", name_override="ask_person")
    told: list[SuspendOutcome] = []

    async def body(asynchronous: AsyncClient, runner: SessionRunner) -> None:
        agent = clerk()
        hooks = SessionHooks(
            asynchronous,
            "slow",
            ["ask_person"],
            suspend_wait_s=0.0,
            on_suspend=lambda _, outcome: told.append(outcome),
        )
        await runner.run(agent, "Hello.", "slow", run_config=QUIET)
        with caplog.at_level(logging.WARNING):
            await hooks.on_tool_start(context, agent, tool)
            await hooks.on_tool_end(context, agent, tool, "done")

    inside(served, body)
    (outcome,) = told
    assert isinstance(outcome, Operation)
    assert (outcome.session_id, outcome.has_ended) == ("slow", False)
    assert ours(caplog) == []
    gate.open()
    assert client.wait(outcome).status == "succeeded"
