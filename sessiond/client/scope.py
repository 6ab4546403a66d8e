"""What a session's scope offers, blocking or not."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from sessiond.client.errors import ApiError
from sessiond.client.repeating import Settling

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from sessiond.client.answers import ResumeReport, Session, SuspendReport, Ticket
    from sessiond.client.asynchronous import AsyncClient
    from sessiond.client.blocking import Client
    from sessiond.client.options import SessionOptions


@dataclass(frozen=True)
class Ends:
    """What happens at both ends of a scope."""

    suspends: bool  #: at its end
    resumes: bool  #: at its beginning


class ScopeFacts:
    """A session, and what other clients need for their calls to be its turns.

    :ivar session_id: its id
    """

    def __init__(self, session_id: str, openai_arguments: Mapping[str, Any]) -> None:
        self.session_id = session_id
        self._openai_arguments = openai_arguments

    @property
    def headers(self) -> dict[str, str]:
        """The headers that make a call of the gateway a turn of this session."""
        return {"X-Session-Id": self.session_id}

    @property
    def openai_arguments(self) -> dict[str, Any]:
        """The arguments of ``openai.OpenAI`` (or ``AsyncOpenAI``) for turns of this session."""
        return {**self._openai_arguments, "default_headers": self.headers}


class SessionScope(ScopeFacts):
    """Work in one session; see :meth:`Client.session`.

    :ivar suspended: how the suspend at the end ended; ``None`` before, without one, and where
        there was nothing to suspend
    """

    def __init__(
        self, client: Client, session_id: str, options: SessionOptions, ends: Ends
    ) -> None:
        super().__init__(session_id, client.openai_arguments)
        self._client, self._options, self._ends = client, options, ends
        self.suspended: SuspendReport | None = None

    def __enter__(self) -> Self:
        try:
            self._client.create_session(self.session_id, **self._options)
        except ApiError as error:
            if error.code != "session_exists":
                raise
        if self._ends.resumes:
            self.resume()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        body_error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if not self._ends.suspends:
            return
        try:
            self.suspended = self.suspend_settled()
        except Exception as error:
            if body_error is None:
                raise
            _note_unsuspended(body_error, error)

    def show(self) -> Session:
        """Return the session as it is now."""
        return self._client.get_session(self.session_id)

    def suspend(self) -> SuspendReport:
        """Suspend the session now."""
        return self._client.suspend(self.session_id)

    def resume(self) -> ResumeReport:
        """Bring the session's KV back now."""
        return self._client.resume(self.session_id)

    def ticket(self, *, model: str = "", chat: Mapping[str, Any] | None = None) -> Ticket:
        """Return a ticket for a turn that goes to vLLM directly."""
        return self._client.ticket(self.session_id, model=model, chat=chat)

    def suspend_settled(self, *, wait_s: float | None = None) -> SuspendReport | None:
        """Suspend the session, through what may pass in a moment, such as a turn that is ending.

        :param wait_s: how long to wait for the end; ``None``: as long as it takes
        :returns: ``None`` if there is nothing to suspend
        :raises OperationRunningError: it has not ended in that time, and goes on.
        """
        settling = Settling(wait_s)
        while True:
            try:
                return self._client.suspend(self.session_id, wait_s=settling.left_s())
            except ApiError as error:
                if error.code == "nothing_to_suspend":
                    return None
                pause_s = settling.pause_s(error)
            time.sleep(pause_s)


class AsyncSessionScope(ScopeFacts):
    """Work in one session; see :meth:`AsyncClient.session`.

    :ivar suspended: how the suspend at the end ended; ``None`` before, without one, and where
        there was nothing to suspend
    """

    def __init__(
        self, client: AsyncClient, session_id: str, options: SessionOptions, ends: Ends
    ) -> None:
        super().__init__(session_id, client.openai_arguments)
        self._client, self._options, self._ends = client, options, ends
        self.suspended: SuspendReport | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._client.create_session(self.session_id, **self._options)
        except ApiError as error:
            if error.code != "session_exists":
                raise
        if self._ends.resumes:
            await self.resume()
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        body_error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if not self._ends.suspends:
            return
        try:
            self.suspended = await self.suspend_settled()
        except Exception as error:
            if body_error is None:
                raise
            _note_unsuspended(body_error, error)

    async def show(self) -> Session:
        """Return the session as it is now."""
        return await self._client.get_session(self.session_id)

    async def suspend(self) -> SuspendReport:
        """Suspend the session now."""
        return await self._client.suspend(self.session_id)

    async def resume(self) -> ResumeReport:
        """Bring the session's KV back now."""
        return await self._client.resume(self.session_id)

    async def ticket(self, *, model: str = "", chat: Mapping[str, Any] | None = None) -> Ticket:
        """Return a ticket for a turn that goes to vLLM directly."""
        return await self._client.ticket(self.session_id, model=model, chat=chat)

    async def suspend_settled(self, *, wait_s: float | None = None) -> SuspendReport | None:
        """Suspend the session, through what may pass in a moment, such as a turn that is ending.

        :param wait_s: how long to wait for the end; ``None``: as long as it takes
        :returns: ``None`` if there is nothing to suspend
        :raises OperationRunningError: it has not ended in that time, and goes on.
        """
        settling = Settling(wait_s)
        while True:
            try:
                return await self._client.suspend(self.session_id, wait_s=settling.left_s())
            except ApiError as error:
                if error.code == "nothing_to_suspend":
                    return None
                pause_s = settling.pause_s(error)
            await asyncio.sleep(pause_s)


def _note_unsuspended(body_error: BaseException, error: Exception) -> None:
    """Tell, with the error of a scope's body, that its session was not suspended either."""
    body_error.add_note(f"The session was not suspended: {error}")
