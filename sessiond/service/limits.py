"""The numbers that the service works with; the app fills them from its settings."""

from __future__ import annotations

from dataclasses import dataclass

from sessiond.domain.plans import PlanPolicy
from sessiond.domain.session import OnEvicted
from sessiond.domain.windows import SweepWindow


@dataclass(frozen=True)
class Limits:
    """Deadlines, periods and bounds; every wait of the service has one of them."""

    idle_timeout_s: float = 300.0  #: for sessions without one of their own
    on_evicted: OnEvicted = OnEvicted.PREFIX  #: for sessions without a choice of their own
    plan_policy: PlanPolicy = PlanPolicy.AUTO  #: for sessions without one of their own
    plan_objective_s: float = 1.0  #: of the policy objective, likewise
    first_look: bool = True  #: whether an engine of a new kind is measured while it is idle
    learn_s: float = 3.0  #: between two savings of what was measured
    suspend_deadline_s: float = 120.0  #: one round of a suspend
    resume_deadline_s: float = 120.0  #: one round of a resume
    #: The whole of an attestation; 'sessionctl engines attest' waits longer.
    attest_deadline_s: float = 90.0
    continue_deadline_s: float = 10.0  #: all that a ticket's "continue" asks of the engine
    lease_s: float = 30.0  #: an operation whose daemon is silent for so long is given up
    turn_settle_s: float = 0.5  #: a head file lags this much behind the turn's answer
    heads_settle_s: float = 2.0  #: how long an engine may take to say that its heads are written
    key_settle_s: float = 5.0  #: how long a call waits for the first one with its key to begin
    commit_settle_s: float = 2.0  #: how long a manifest may still appear after a lost answer
    poll_s: float = 0.05  #: between looks at a file that is waited for
    suspend_rounds: int = 64
    resume_rounds: int = 64
    turn_ticket_s: int = 300
    operation_ticket_s: int = 120
    sweep_concurrency: int = 2
    sweep_bytes_per_s: int = 0  #: that the suspends of sweeps write on average; 0: any number
    #: While resumes run, a sweep begins one suspend in so long; 0: it does not care.
    sweep_yield_s: float = 30.0
    sweep_patience_s: float = 5.0  #: a suspend's turn is waited for; then the rest is left
    sweep_windows: tuple[SweepWindow, ...] = ()
    ttl_s: float = 0.0  #: for sessions without one of their own; 0: snapshots never expire
    keep_generations: int = 1  #: of each session
    quota_tenant_bytes: int = 0  #: 0: none
    quota_total_bytes: int = 0  #: 0: none
    free_space_floor_bytes: int | None = None  #: ``None``: 2 % of the disk, at most 1 GiB
    #: No writer that knew a deleted session lives on for so long.
    tombstone_age_s: float = 86_400.0
    operations_age_s: float = 30 * 86_400.0  #: since their end, and of idempotency keys
    retention_interval_s: float = 60.0
    full_collect_s: float = 3_600.0  #: between two looks at every segment of the store
    scrub_period_s: int = 7 * 86_400  #: in which everything is read once; 0: no scrub
    scrub_bytes_per_s: int = 32 << 20
    event_listeners: int = 32  #: open streams of events of each tenant
    event_poll_s: float = 1.0  #: between a listener's looks for new events
    event_heartbeat_s: float = 15.0  #: without an event, until a listener is told that
    write_bytes_per_day: int = 0  #: 0: any number
    write_least_tokens: int = 0  #: of a snapshot that a sweep makes; one chunk at least
    write_least_chance: float = 0.05  #: that the session comes back, for a sweep; 0: any
    write_least_outcomes: int = 20  #: before so many are known of a kind, no chance is too small
    write_explored_part: float = 0.05  #: of what is unlikely is written all the same, to learn
    write_pressure_bytes: int = 0  #: with less than this spare, sweeps write the likely ones only
    write_pressure_chance: float = 0.2  #: of these
    write_holds_explicit: bool = False  #: budget and pressure hold what is asked for, too
    return_horizon_s: float = 7 * 86_400.0  #: whoever is away for longer is not waited for
    sweep_retry_s: float = 60.0  #: before a failed suspend is swept again; doubles each time
