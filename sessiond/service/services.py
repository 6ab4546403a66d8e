"""All parts of the service, put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.service.attest import Attestations
from sessiond.service.background import Background
from sessiond.service.catalogue import Catalogue
from sessiond.service.damage import DamageTeller
from sessiond.service.lifecycle import Lifecycle
from sessiond.service.operations import Operations
from sessiond.service.probe import Prober
from sessiond.service.purge import Purger
from sessiond.service.recovery import Recovery
from sessiond.service.retention import Retention
from sessiond.service.scrub import Scrubber
from sessiond.service.snapshots import Snapshots
from sessiond.service.sweep import Sweeper
from sessiond.service.turns import Turns
from sessiond.service.verification import Verifier

if TYPE_CHECKING:
    from sessiond.service.context import Context


@dataclass(frozen=True)
class Services:
    """What the edges call."""

    context: Context
    catalogue: Catalogue
    lifecycle: Lifecycle
    turns: Turns
    prober: Prober
    operations: Operations
    sweeper: Sweeper
    purger: Purger
    recovery: Recovery
    retention: Retention
    scrubber: Scrubber
    verifier: Verifier
    attestations: Attestations


def build(context: Context) -> Services:
    """Return the service over *context*."""
    snapshots = Snapshots(context)
    catalogue = Catalogue(context, snapshots)
    operations = Operations(context)
    retention = Retention(context)
    lifecycle = Lifecycle(context, snapshots, catalogue, operations, retention)
    background = Background(lambda: operations.is_busy, context.limits.poll_s)
    teller = DamageTeller(context)
    return Services(
        context=context,
        catalogue=catalogue,
        lifecycle=lifecycle,
        turns=Turns(context, snapshots, catalogue),
        prober=Prober(context, snapshots, catalogue),
        operations=operations,
        sweeper=Sweeper(context, catalogue, lifecycle, operations),
        purger=Purger(context, lifecycle, operations),
        recovery=Recovery(context, snapshots),
        retention=retention,
        scrubber=Scrubber(context, background, teller),
        verifier=Verifier(context, background, teller),
        attestations=Attestations(context),
    )
