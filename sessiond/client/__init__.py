"""The Python client: what agents and tools call sessiond with.

::

    with Client() as client, client.session("agent-7", suspend_on_exit=True) as session:
        OpenAI(**session.openai_arguments).chat.completions.create(...)

Needs httpx and nothing of the daemon: ``pip install 'sessiond[client]'``.
"""

from sessiond.client.answers import (
    Cause,
    Continuation,
    DeleteReport,
    Event,
    LastTurn,
    Mismatch,
    Operation,
    Origin,
    Presence,
    Probe,
    ResumeReport,
    Session,
    Snapshot,
    SuspendReport,
    Ticket,
    TicketEngine,
    Timing,
)
from sessiond.client.answers_engines import (
    Adapter,
    DrainReport,
    Engine,
    Engines,
    KvKind,
    Pause,
    Saved,
    SlowPath,
    Stranger,
    Undrained,
    Unsaved,
)
from sessiond.client.asynchronous import AsyncClient
from sessiond.client.blocking import Client
from sessiond.client.errors import (
    ApiError,
    NotSessiondError,
    OperationRunningError,
    UnreachableError,
)
from sessiond.client.scope import AsyncSessionScope, SessionScope

__all__ = [
    "Client",
    "AsyncClient",
    "SessionScope",
    "AsyncSessionScope",
    "ApiError",
    "UnreachableError",
    "NotSessiondError",
    "OperationRunningError",
    "Adapter",
    "Cause",
    "Continuation",
    "DeleteReport",
    "DrainReport",
    "Engine",
    "Engines",
    "Event",
    "KvKind",
    "LastTurn",
    "Mismatch",
    "Operation",
    "Origin",
    "Pause",
    "Presence",
    "Probe",
    "ResumeReport",
    "Session",
    "Snapshot",
    "Saved",
    "SlowPath",
    "Stranger",
    "SuspendReport",
    "Ticket",
    "TicketEngine",
    "Timing",
    "Undrained",
    "Unsaved",
]
