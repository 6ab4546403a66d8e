"""Idempotency keys: a repeated call gets what the first one made.

A key stands for one attempt, however that ended: who lost the answer can ask how it was, and
nothing is done twice. Only a call that was refused before anything began leaves its key free, and
so does, after a lease, a daemon that died before it began. Old keys go with old operations.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from sessiond.domain.canonical import canonical_json
from sessiond.domain.errors import OperationInProgressError, OperationNotFoundError
from sessiond.domain.ids import OperationId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.ids import TenantId
    from sessiond.domain.session import Operation
    from sessiond.service.context import Context
    from sessiond.service.operations import Claim


@dataclass(frozen=True)
class Once:
    """One client's key for one request."""

    context: Context
    tenant: TenantId
    key: str
    request: JsonValue

    async def begin(self, made_id: OperationId) -> str | None:
        """Bind the key to what is about to be made; return the id of what it stands for already.

        :raises KeyReusedError: the key was used for another request.
        :raises InvalidInputError: the key is not 1 to 255 printable characters.
        """
        return await self.context.blocking(
            self.context.registry.remember,
            self.tenant,
            self.key,
            hashlib.sha256(canonical_json(self.request)).digest(),
            made_id,
            self.context.now(),
            # Who has not begun by then never will.
            self.context.now() - self.context.limits.lease_s,
        )

    async def rebind(self, made_id: OperationId) -> None:
        """Bind the key to something else than was said at the beginning."""
        await self.forget()
        await self.begin(made_id)

    async def forget(self) -> None:
        """Free the key."""
        await self.context.blocking(self.context.registry.forget, self.tenant, self.key)

    @asynccontextmanager
    async def forgotten_on_error(self) -> AsyncIterator[None]:
        """Free the key if nothing is made inside."""
        try:
            yield
        except BaseException:
            await self.forget()
            raise

    async def operation(
        self, wanted: Claim, start: Callable[[], Awaitable[Operation]]
    ) -> Operation:
        """Start an operation, or return the one that the key stands for already.

        :raises OperationInProgressError: the first call with the key has not come so far yet.
        """
        earlier = await self.begin(wanted.operation_id)
        if earlier is not None:
            return await self._earlier(OperationId(earlier))
        async with self.forgotten_on_error():
            operation = await start()
        if operation.operation_id != wanted.operation_id:  # joined one that ran already
            await self.rebind(operation.operation_id)
        return operation

    async def _earlier(self, operation_id: OperationId) -> Operation:
        """Return the first call's operation, which that may be about to begin."""
        get, limits = self.context.registry.get_operation, self.context.limits
        deadline_s = monotonic() + limits.key_settle_s
        while True:
            try:
                return await self.context.blocking(get, self.tenant, operation_id)
            except OperationNotFoundError as error:
                if monotonic() >= deadline_s:
                    raise OperationInProgressError from error
            await asyncio.sleep(limits.poll_s)
