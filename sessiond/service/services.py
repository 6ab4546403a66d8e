"""All parts of the service, put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.service.catalogue import Catalogue
from sessiond.service.lifecycle import Lifecycle
from sessiond.service.operations import Operations
from sessiond.service.purge import Purger
from sessiond.service.recovery import Recovery
from sessiond.service.snapshots import Snapshots
from sessiond.service.sweep import Sweeper
from sessiond.service.turns import Turns

if TYPE_CHECKING:
    from sessiond.service.context import Context


@dataclass(frozen=True)
class Services:
    """What the edges call."""

    context: Context
    catalogue: Catalogue
    lifecycle: Lifecycle
    turns: Turns
    operations: Operations
    sweeper: Sweeper
    purger: Purger
    recovery: Recovery


def build(context: Context) -> Services:
    """Return the service over *context*."""
    snapshots = Snapshots(context)
    catalogue = Catalogue(context, snapshots)
    operations = Operations(context)
    lifecycle = Lifecycle(context, snapshots, catalogue, operations)
    return Services(
        context=context,
        catalogue=catalogue,
        lifecycle=lifecycle,
        turns=Turns(context, snapshots, catalogue),
        operations=operations,
        sweeper=Sweeper(context, catalogue, lifecycle, operations),
        purger=Purger(context, lifecycle, operations),
        recovery=Recovery(context, snapshots),
    )
