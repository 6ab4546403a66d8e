"""OpenAI Agents SDK: runs in a session.

::

    async with AsyncClient() as client, SessionRunner(client) as runner:
        result = await runner.run(agent, "...", "agent-7")
        if result.interruptions:  # a tool waits for an approval: the session is put away
            state = result.to_state()
            state.approve(result.interruptions[0])
            result = await runner.run(agent, state, "agent-7")

Needs ``pip install 'sessiond[agents]'``.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from agents import ModelSettings, OpenAIProvider, RunConfig, RunHooks, Runner, RunState
from openai import AsyncOpenAI

from sessiond.client import ApiError, OperationRunningError
from sessiond.integrations.suspends import (
    SUSPEND_WAIT_S,
    tell,
    tell_unresumed,
    tell_unsuspended,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from agents import (
        Agent,
        RunContextWrapper,
        RunResult,
        RunResultStreaming,
        Tool,
        TResponseInputItem,
    )

    from sessiond.client import AsyncClient
    from sessiond.integrations.suspends import OnSuspend, SuspendOutcome

_HEADER = "X-Session-Id"


class SessionRunner:
    """Runs agents whose model calls are turns of a session, through the gateway of a daemon.

    One serves any number of agents and sessions: the session is named for each run. Use it as a
    context, or close it. Belongs to one event loop.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        use_responses: bool = False,
        suspend_wait_s: float = SUSPEND_WAIT_S,
        resume_wait_s: float = 0.0,
        on_suspend: OnSuspend | None = None,
    ) -> None:
        """Create one.

        :param use_responses: call the Responses interface instead of chat completions
        :param suspend_wait_s: how long a run that is interrupted waits for its suspend before it
            returns; one that takes longer goes on
        :param resume_wait_s: how long a run that goes on waits for its session; by default it
            runs on beside that, and what the next turn does not find yet it loads itself
        :param on_suspend: is told of each suspend before the run returns: its report, or its
            operation where it goes on, to be waited for with :meth:`AsyncClient.wait`
        """
        self._client, self._on_suspend = client, on_suspend
        self._suspend_wait_s, self._resume_wait_s = suspend_wait_s, resume_wait_s
        # The SDK's own connections are shared by all event loops of the process, and break.
        self._openai = AsyncOpenAI(**client.openai_arguments)
        self._provider = OpenAIProvider(openai_client=self._openai, use_responses=use_responses)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections to the gateway; the client stays open."""
        await self._openai.close()

    def config(self, session_id: str, config: RunConfig | None = None) -> RunConfig:
        """Return a configuration for ``Runner``: every model call is a turn of the session.

        As the SDK has it, the headers of a run replace the ``extra_headers`` in the settings of
        its agents: give those that all calls need in *config*.
        """
        given = config or RunConfig()
        settings = given.model_settings or ModelSettings()
        headers = {**(settings.extra_headers or {}), _HEADER: session_id}
        return replace(
            given,
            model_provider=self._provider,
            model_settings=replace(settings, extra_headers=headers),
        )

    async def run(
        self,
        agent: Agent[Any],
        given: str | list[TResponseInputItem] | RunState[Any, Any],
        session_id: str,
        *,
        run_config: RunConfig | None = None,
        **options: Any,
    ) -> RunResult:
        """Run an agent as ``Runner.run`` does.

        Where the run ends because a tool waits for an approval, the session is suspended; a run
        that goes on from such a state brings it back, beside the run.

        :param options: of ``Runner.run``, such as ``context``, ``hooks`` and ``session``
        """
        await self._begin(given, session_id)
        config = self.config(session_id, run_config)
        result = await Runner.run(agent, given, run_config=config, **options)
        await self._end(result, session_id)
        return result

    @asynccontextmanager
    async def run_streamed(
        self,
        agent: Agent[Any],
        given: str | list[TResponseInputItem] | RunState[Any, Any],
        session_id: str,
        *,
        run_config: RunConfig | None = None,
        **options: Any,
    ) -> AsyncIterator[RunResultStreaming]:
        """Run an agent as ``Runner.run_streamed`` does, as long as the context lasts.

        ::

            async with runner.run_streamed(agent, "...", "agent-7") as result:
                async for event in result.stream_events(): ...

        At its end the session is suspended where the run has been interrupted, as by :meth:`run`.

        :param options: of ``Runner.run_streamed``
        """
        await self._begin(given, session_id)
        config = self.config(session_id, run_config)
        result = Runner.run_streamed(agent, given, run_config=config, **options)
        yield result
        await self._end(result, session_id)

    async def _begin(self, given: object, session_id: str) -> None:
        if isinstance(given, RunState):
            await resume_ahead(self._client, session_id, self._resume_wait_s)

    async def _end(self, result: RunResult | RunResultStreaming, session_id: str) -> None:
        if result.interruptions:
            outcome = await suspend_meanwhile(self._client, session_id, self._suspend_wait_s)
            tell(self._on_suspend, session_id, outcome)


class SessionHooks(RunHooks[Any]):
    """Puts a session away while tools run that take long, such as those that ask a person."""

    def __init__(
        self,
        client: AsyncClient,
        session_id: str,
        slow_tools: Collection[str],
        *,
        suspend_wait_s: float = SUSPEND_WAIT_S,
        on_suspend: OnSuspend | None = None,
    ) -> None:
        """Create them for one session.

        :param slow_tools: names of tools that are worth a suspend
        :param suspend_wait_s: how long such a tool waits for it; one that takes longer goes on
        :param on_suspend: is told of each, as for :class:`SessionRunner`
        """
        self._client, self._session_id = client, session_id
        self._suspend_wait_s, self._on_suspend = suspend_wait_s, on_suspend
        self._slow_tools = frozenset(slow_tools)

    async def on_tool_start(
        self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool
    ) -> None:
        """Suspend the session before a slow tool."""
        if tool.name in self._slow_tools:
            outcome = await suspend_meanwhile(self._client, self._session_id, self._suspend_wait_s)
            tell(self._on_suspend, self._session_id, outcome)

    async def on_tool_end(
        self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool, result: object
    ) -> None:
        """Begin to bring it back after a slow tool."""
        if tool.name in self._slow_tools:
            await resume_ahead(self._client, self._session_id)


async def suspend_meanwhile(
    client: AsyncClient, session_id: str, wait_s: float
) -> SuspendOutcome | None:
    """Suspend a session; what goes wrong is logged, and disturbs no run.

    :param wait_s: how long to wait for its end
    :returns: the report; the operation if it goes on; ``None`` if nothing was suspended
    """
    try:
        return await client.session(session_id).suspend_settled(wait_s=wait_s)
    except OperationRunningError as error:
        return error.operation
    except ApiError as error:
        tell_unsuspended(session_id, error)
        return None


async def resume_ahead(client: AsyncClient, session_id: str, wait_s: float = 0.0) -> None:
    """Begin to bring a session back; what goes wrong is logged, and disturbs no run.

    :param wait_s: how long to wait for its end
    """
    try:
        await client.resume(session_id, wait_s=wait_s)
    except OperationRunningError:
        pass  # it goes on beside the run
    except ApiError as error:
        tell_unresumed(session_id, error)
