"""All parts of the service, put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.service.attest import Attestations
from sessiond.service.background import Background
from sessiond.service.catalogue import Catalogue
from sessiond.service.damage import DamageTeller
from sessiond.service.drain import Drainer
from sessiond.service.feed import Feed
from sessiond.service.firstlook import FirstLook
from sessiond.service.fork import Forker
from sessiond.service.gateway import Gateway
from sessiond.service.lifecycle import Lifecycle
from sessiond.service.operations import Operations
from sessiond.service.pauses import Pauses
from sessiond.service.plans import Planner
from sessiond.service.probe import Prober
from sessiond.service.purge import Purger
from sessiond.service.recovery import Recovery
from sessiond.service.retention import Retention
from sessiond.service.scrub import Scrubber
from sessiond.service.snapshots import Snapshots
from sessiond.service.sweep import Sweeper
from sessiond.service.turns import Turns
from sessiond.service.verification import Verifier
from sessiond.service.worth import Worth

if TYPE_CHECKING:
    from sessiond.service.context import Context


@dataclass(frozen=True)
class Services:
    """What the edges call."""

    context: Context
    catalogue: Catalogue
    lifecycle: Lifecycle
    forker: Forker
    drainer: Drainer
    turns: Turns
    gateway: Gateway
    prober: Prober
    operations: Operations
    sweeper: Sweeper
    pauses: Pauses
    purger: Purger
    recovery: Recovery
    retention: Retention
    scrubber: Scrubber
    verifier: Verifier
    attestations: Attestations
    feed: Feed
    planner: Planner
    first_look: FirstLook


def build(context: Context) -> Services:
    """Return the service over *context*."""
    snapshots = Snapshots(context)
    planner = Planner(context)
    catalogue = Catalogue(context, snapshots, planner)
    operations = Operations(context)
    retention = Retention(context)
    worth = Worth(context)
    lifecycle = Lifecycle(context, snapshots, catalogue, operations, retention, planner, worth)
    background = Background(lambda: operations.is_busy, context.limits.poll_s)
    teller = DamageTeller(context)
    turns = Turns(context, snapshots, catalogue, planner)
    pauses = Pauses(context)
    return Services(
        context=context,
        catalogue=catalogue,
        lifecycle=lifecycle,
        forker=Forker(context, snapshots, catalogue, operations),
        drainer=Drainer(context, snapshots, lifecycle, operations),
        turns=turns,
        gateway=Gateway(context, catalogue, turns),
        prober=Prober(context, snapshots, planner),
        operations=operations,
        sweeper=Sweeper(context, catalogue, lifecycle, operations, pauses, worth),
        pauses=pauses,
        purger=Purger(context, lifecycle, operations),
        recovery=Recovery(context, snapshots),
        retention=retention,
        scrubber=Scrubber(context, background, teller),
        verifier=Verifier(context, background, teller),
        attestations=Attestations(context),
        feed=Feed(context),
        planner=planner,
        first_look=FirstLook(context, planner.calibrator, enabled=context.limits.first_look),
    )
