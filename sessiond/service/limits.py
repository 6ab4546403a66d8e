"""The numbers that the service works with; the app fills them from its settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Deadlines, periods and bounds; every wait of the service has one of them."""

    idle_timeout_s: float = 300.0  #: for sessions without one of their own
    suspend_deadline_s: float = 120.0  #: one round of a suspend
    resume_deadline_s: float = 120.0  #: one round of a resume
    lease_s: float = 30.0  #: an operation whose daemon is silent for so long is given up
    turn_settle_s: float = 0.5  #: a head file lags this much behind the turn's answer
    commit_settle_s: float = 2.0  #: how long a manifest may still appear after a lost answer
    poll_s: float = 0.05  #: between looks at a file that is waited for
    suspend_rounds: int = 64
    resume_rounds: int = 64
    turn_ticket_s: int = 300
    operation_ticket_s: int = 120
    sweep_concurrency: int = 2
    sweep_retry_s: float = 60.0  #: before a suspend that failed is swept again
