"""Idempotency keys: a repeated call gets what the first one made."""

from __future__ import annotations

import hashlib
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.domain.canonical import canonical_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.ids import OperationId, TenantId
    from sessiond.service.context import Context


@dataclass(frozen=True)
class Once:
    """One client's key for one request."""

    context: Context
    tenant: TenantId
    key: str
    request: JsonValue

    async def begin(self, made_id: OperationId) -> str | None:
        """Bind the key to what is about to be made; return the id of what it stands for already.

        :raises ConflictError: the key was used for another request.
        :raises InvalidInputError: the key is not 1 to 255 printable characters.
        """
        return await self.context.blocking(
            self.context.registry.remember,
            self.tenant,
            self.key,
            hashlib.sha256(canonical_json(self.request)).digest(),
            made_id,
            self.context.now(),
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
