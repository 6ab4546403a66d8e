"""What every part of the service works with."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sessiond.engine.streams import EngineStreams
from sessiond.service.passages import OnTheWay
from sessiond.service.planstate import PlanState
from sessiond.service.restores import Restores
from sessiond.service.resume_queue import ResumeQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from sessiond.engine.client import EngineClient
    from sessiond.registry import Registry
    from sessiond.service.blocking import Blocking
    from sessiond.service.engines import Engines
    from sessiond.service.limits import Limits
    from sessiond.service.observer import Observer
    from sessiond.service.permits import Signer
    from sessiond.service.watch import Watchlist
    from sessiond.store.store import Store


@dataclass(frozen=True)
class Context:
    """The store, the registry and the engines, with the numbers to use them by."""

    store: Store
    registry: Registry
    client: EngineClient
    engines: Engines
    blocking: Blocking
    signer: Signer
    limits: Limits
    observer: Observer
    watchlist: Watchlist
    owner: str  #: names this daemon in leases
    now: Callable[[], float] = time.time
    streams: EngineStreams = field(default_factory=EngineStreams)
    restores: Restores = field(default_factory=Restores)
    on_the_way: OnTheWay = field(default_factory=OnTheWay)
    resume_queue: ResumeQueue = field(default_factory=ResumeQueue)
    plans: PlanState = field(default_factory=PlanState)
