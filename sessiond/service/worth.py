"""Whether a suspend is worth its bytes: facts for the rule of ``domain.worth``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessiond.domain.errors import SuspendRefusedError
from sessiond.domain.retention import floor_bytes
from sessiond.domain.session import OperationKind
from sessiond.domain.worth import Refused, WriteFacts, WriteLimits, admit
from sessiond.service.reports import first_reason, problem_of
from sessiond.service.returns import kind_of, returns
from sessiond.service.storing import need_of
from sessiond.service.writes import left_bytes

if TYPE_CHECKING:
    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.reasons import Cause
    from sessiond.domain.session import Session
    from sessiond.service.context import Context
    from sessiond.service.suspend_plans import Plan


class Worth:
    """Refuses what is not worth being written."""

    def __init__(self, context: Context) -> None:
        limits = context.limits
        self._context = context
        self._limits = WriteLimits(
            least_tokens=limits.write_least_tokens,
            least_chance=limits.write_least_chance,
            explored_part=limits.write_explored_part,
            pressure_bytes=limits.write_pressure_bytes,
            valuable_chance=limits.write_pressure_chance,
            least_outcomes=limits.write_least_outcomes,
            holds_explicit=limits.write_holds_explicit,
        )

    async def check(self, plan: Plan, *, by_sweep: bool) -> None:
        """Raise if what is planned should not be written.

        A sweep has :meth:`tell` called only where that is news; for who asks it always is.

        :raises SuspendRefusedError: it should not.
        :raises RegistryUnavailableError: the registry does not answer.
        :raises StoreError: the store cannot be read.
        """
        if not by_sweep and not self._limits.holds_explicit:
            return
        cause = await self._context.blocking(self._refusal, plan, not by_sweep)
        if cause is None:
            return
        error = SuspendRefusedError(causes=(cause,))
        if not by_sweep:
            await self.tell(plan.session, error)
        raise error

    async def has_budget(self) -> bool:
        """Return whether the day's bytes allow that something is written now.

        :raises RegistryUnavailableError: the registry does not answer.
        """
        return await self._context.blocking(left_bytes, self._context) > 0.0

    async def tell(self, session: Session, error: SuspendRefusedError) -> None:
        """Write down that a suspend was refused, and count it."""
        observer, told = self._context.observer, problem_of(error)
        observer.ended(OperationKind.SUSPEND, "refused", first_reason(error.causes), 0.0)
        observer.explained(OperationKind.SUSPEND, error.causes)
        await self._context.blocking(self._tell, session, told)

    def _tell(self, session: Session, told: dict[str, JsonValue]) -> None:
        registry, now = self._context.registry, self._context.now()
        registry.add_event(session.tenant, session.session_id, "suspend_refused", now, told)
        # It is learned from as well; else what is not written now never would be.
        registry.mark_away(session.tenant, session.session_id, now)

    def _refusal(self, plan: Plan, is_explicit: bool) -> Cause | None:  # noqa: FBT001 - called through a thread
        need = need_of(plan)
        if not need.size_bytes:
            return None
        context, session, now = self._context, plan.session, self._context.now()
        known = returns(context)
        kind = kind_of(session)
        facts = WriteFacts(
            tenant=session.tenant,
            session=session.session_id,
            tokens=need.tokens,
            new_bytes=need.size_bytes,
            return_chance=known.chance(kind, now),
            budget_left_bytes=left_bytes(context),
            spare_bytes=self._spare_bytes(),
            now_unix_s=now,
            is_explicit=is_explicit,
            outcomes=known.outcomes(kind, now),
        )
        found = admit(facts, self._limits)
        return found.cause if isinstance(found, Refused) else None

    def _spare_bytes(self) -> int:
        space = self._context.store.upkeep.space()
        floor = floor_bytes(self._context.limits.free_space_floor_bytes, space.total_bytes)
        return space.free_bytes - floor
