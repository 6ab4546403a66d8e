"""LangGraph: a thread is a session.

::

    client = Client()
    model = thread_model(client, model="MODEL")
    graph = builder.compile(checkpointer=...).with_config(callbacks=[SessionCallbacks(client)])
    graph.invoke(..., {"configurable": {"thread_id": "agent-7"}})

While the graph waits for a person, its session is put away; the answer brings it back. Needs
``pip install 'sessiond[langgraph]'``.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from langchain_core.runnables.config import ensure_config
from langchain_openai import ChatOpenAI
from langgraph.callbacks import GraphCallbackHandler, GraphInterruptEvent, GraphResumeEvent

from sessiond.client import ApiError, OperationRunningError
from sessiond.domain.errors import InvalidSessionIdError
from sessiond.domain.ids import parse_session_id
from sessiond.integrations.suspends import (
    SUSPEND_WAIT_S,
    SuspendOutcome,
    tell,
    tell_unresumed,
    tell_unsuspended,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from uuid import UUID

    from langchain_core.language_models import LanguageModelInput
    from langchain_core.messages import AIMessage, AIMessageChunk
    from langchain_core.runnables import RunnableConfig

    from sessiond.client import Client
    from sessiond.integrations.suspends import OnSuspend

_HEADER = "X-Session-Id"
_THREAD = "thread_id"


def session_of_thread(thread_id: object) -> str:
    """Return the id of a thread's session: the same, or made of it where it cannot be one."""
    name = str(thread_id)
    try:
        return parse_session_id(name)
    except InvalidSessionIdError:
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16)
        return f"thread-{digest.hexdigest()}"


def thread_model(client: Client, **arguments: Any) -> ThreadChatOpenAI:
    """Return a chat model that calls the gateway of a client's daemon.

    :param arguments: of ``ChatOpenAI``, such as ``model`` and ``temperature``
    """
    return ThreadChatOpenAI(**client.openai_arguments, **arguments)


class ThreadChatOpenAI(ChatOpenAI):
    """``ChatOpenAI`` whose requests are turns of the session of the thread that they come from.

    The thread is looked up for each request, so one model serves any number of threads. Calls
    outside of a thread belong to no session.
    """

    def invoke(
        self, input: LanguageModelInput, config: RunnableConfig | None = None, **options: Any
    ) -> AIMessage:
        """Answer, as a turn of the thread's session."""
        return super().invoke(input, config, **_of_thread(config, options))

    async def ainvoke(
        self, input: LanguageModelInput, config: RunnableConfig | None = None, **options: Any
    ) -> AIMessage:
        """Answer, as a turn of the thread's session."""
        return await super().ainvoke(input, config, **_of_thread(config, options))

    def stream(
        self, input: LanguageModelInput, config: RunnableConfig | None = None, **options: Any
    ) -> Iterator[AIMessageChunk]:
        """Answer piece by piece, as a turn of the thread's session."""
        yield from super().stream(input, config, **_of_thread(config, options))

    async def astream(
        self, input: LanguageModelInput, config: RunnableConfig | None = None, **options: Any
    ) -> AsyncIterator[AIMessageChunk]:
        """Answer piece by piece, as a turn of the thread's session."""
        async for chunk in super().astream(input, config, **_of_thread(config, options)):
            yield chunk

    def stream_events(
        self, input: LanguageModelInput, config: RunnableConfig | None = None, **options: Any
    ) -> Any:
        """Answer event by event, as a turn of the thread's session."""
        return super().stream_events(input, config, **_of_thread(config, options))

    def astream_events(
        self, input: LanguageModelInput, config: RunnableConfig | None = None, **options: Any
    ) -> Any:
        """Answer event by event, as a turn of the thread's session."""
        return super().astream_events(input, config, **_of_thread(config, options))


class SessionCallbacks(GraphCallbackHandler):
    """Suspends a thread's session when its graph is interrupted, and brings it back after that.

    What goes wrong is logged and disturbs no graph: the next turn restores the session by
    itself, or computes its context.
    """

    def __init__(
        self,
        client: Client,
        *,
        suspend_wait_s: float = SUSPEND_WAIT_S,
        resume_wait_s: float = 0.0,
        on_suspend: OnSuspend | None = None,
    ) -> None:
        """Create them for any number of threads.

        :param suspend_wait_s: how long a graph that is interrupted waits for its suspend before
            it returns; one that takes longer goes on
        :param resume_wait_s: how long a graph that goes on waits for its session; by default it
            runs on beside that, and what the next turn does not find yet it loads itself
        :param on_suspend: is told of each suspend before the graph returns: its report, or its
            operation where it goes on, to be waited for with :meth:`Client.wait`
        """
        self._client, self._on_suspend = client, on_suspend
        self._suspend_wait_s, self._resume_wait_s = suspend_wait_s, resume_wait_s
        self._sessions: dict[UUID, str] = {}

    def on_chain_start(self, *_: object, run_id: UUID, **told: Any) -> None:
        """Note which thread a run belongs to."""
        thread_id = (told.get("metadata") or {}).get(_THREAD)
        if thread_id is not None:
            self._sessions[run_id] = session_of_thread(thread_id)

    def on_chain_end(self, *_: object, run_id: UUID, **__: object) -> None:
        """Forget a run."""
        self._sessions.pop(run_id, None)

    def on_chain_error(self, *_: object, run_id: UUID, **__: object) -> None:
        """Forget a run."""
        self._sessions.pop(run_id, None)

    def on_interrupt(self, event: GraphInterruptEvent) -> None:
        """Suspend the session: somebody has to answer, and that may last."""
        session_id = self._session_of(event)
        if session_id is None:
            return
        outcome: SuspendOutcome | None
        try:
            outcome = self._client.session(session_id).suspend_settled(wait_s=self._suspend_wait_s)
        except OperationRunningError as error:
            outcome = error.operation
        except ApiError as error:
            tell_unsuspended(session_id, error)
            return
        tell(self._on_suspend, session_id, outcome)

    def on_resume(self, event: GraphResumeEvent) -> None:
        """Bring the session back, while the graph runs up to its next turn."""
        session_id = self._session_of(event)
        if session_id is None:
            return
        try:
            self._client.resume(session_id, wait_s=self._resume_wait_s)
        except OperationRunningError:
            pass  # it goes on beside the graph
        except ApiError as error:
            tell_unresumed(session_id, error)

    def _session_of(self, event: GraphInterruptEvent | GraphResumeEvent) -> str | None:
        """Return the session that an event is about; ``None`` for a part of a graph."""
        if event.run_id is None or any(event.checkpoint_ns):
            return None
        return self._sessions.get(event.run_id)


def _of_thread(config: RunnableConfig | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's options with the header that names its thread's session."""
    thread_id = ensure_config(config).get("configurable", {}).get(_THREAD)
    if thread_id is None:
        return dict(options)
    given = options.get("extra_headers") or {}
    headers = {_HEADER: session_of_thread(thread_id), **given}
    return {**options, "extra_headers": headers}
