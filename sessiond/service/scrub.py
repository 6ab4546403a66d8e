"""The scrub: everything in the store is read once in a while, slowly, before somebody needs it.

A round goes through all sessions in the order of their folders' names. These are HMACs, which
spread evenly: how far a round should be at some time is therefore a place among the names, and a
run does what lies before that place. The place is kept in the store, under a lock, so that any
number of daemons may run it, and one that was away goes on where it stopped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sessiond.store.findings import VerifyOptions
from sessiond.store.scrublog import ScrubPlace

if TYPE_CHECKING:
    from sessiond.service.background import Background
    from sessiond.service.context import Context
    from sessiond.service.damage import DamageTeller
    from sessiond.store.layout import Folder
    from sessiond.store.scrublog import ScrubLog

_NAME_DIGITS = 32
#: Behind every folder name.
_END = "g"


@dataclass(frozen=True)
class ScrubReport:
    """What one run did."""

    sessions: int = 0
    stored_bytes: int = 0
    damaged: int = 0
    claimed: bool = True  #: whether no other daemon was at it
    finished: bool = False  #: whether the round was ended


class Scrubber:
    """Runs the scrub; a function of ``now`` that may run as often as it likes."""

    def __init__(self, context: Context, background: Background, teller: DamageTeller) -> None:
        self._context, self._background, self._teller = context, background, teller

    async def scrub(self) -> ScrubReport:
        """Read what is due now; does nothing if the scrub is off.

        :raises StoreError: the store's folders cannot be read.
        :raises RegistryUnavailableError: the registry does not answer.
        """
        if not self._context.limits.scrub_period_s:
            return ScrubReport()
        claim = self._context.store.claim_scrub()
        log = await self._context.blocking(claim.__enter__)
        try:
            return ScrubReport(claimed=False) if log is None else await self._run(log)
        finally:
            claim.__exit__(None, None, None)

    async def _run(self, log: ScrubLog) -> ScrubReport:
        now, period_s = self._context.now(), self._context.limits.scrub_period_s
        place = begin(await self._context.blocking(log.read), now)
        until = due_name(place, now, period_s)
        folders = await self._context.blocking(
            self._context.store.session_folders, place.next_name, until
        )
        done = ScrubReport()
        for folder in folders:
            done = await self._session(folder, done)
            behind = replace(place, next_name=f"{folder[-1]}.")
            await self._context.blocking(log.write, behind)
        finished = until == _END
        reached = ScrubPlace(now, "") if finished else replace(place, next_name=until)
        await self._context.blocking(log.write, reached)
        return replace(done, finished=finished)

    async def _session(self, folder: Folder, done: ScrubReport) -> ScrubReport:
        run = self._context.store.verification(VerifyOptions(note_bad=True))
        bytes_per_s = self._context.limits.scrub_bytes_per_s
        await self._background.drive(run.session(folder), bytes_per_s)
        await self._teller.tell(run.report)
        return ScrubReport(
            done.sessions + 1,
            done.stored_bytes + run.report.stored_bytes,
            done.damaged + run.report.damaged,
        )


def begin(place: ScrubPlace | None, now_unix_s: float) -> ScrubPlace:
    """Return where to go on: a new round where there is none, or one from a clock ahead of ours."""
    if place is None or place.began_unix_s > now_unix_s:
        return ScrubPlace(now_unix_s, place.next_name if place else "")
    return place


def due_name(place: ScrubPlace, now_unix_s: float, period_s: float) -> str:
    """Return the name up to which a round should be done by now."""
    share = (now_unix_s - place.began_unix_s) / period_s
    if share >= 1:
        return _END
    name = f"{int(share * 16**_NAME_DIGITS):0{_NAME_DIGITS}x}"
    return max(name, place.next_name)
