"""Passes calls of OpenAI's interface on to engines, as turns of their sessions."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from sessiond.domain import responseids
from sessiond.domain.errors import EngineLostError, EngineUnreachableError, UnavailableError
from sessiond.domain.gateway import Forwarded, forwarded_body, forwarded_headers
from sessiond.domain.jsonbody import parse_body
from sessiond.engine.streams import StreamRequest
from sessiond.service.bodies import by_size
from sessiond.service.calls import Endpoint, Passage, Passed
from sessiond.service.routing import Router
from sessiond.service.turnresults import TurnResults
from sessiond.service.turns import TurnPlan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sessiond.domain.engines import EngineInfo
    from sessiond.domain.ids import TenantId
    from sessiond.domain.jsonbody import JsonBody
    from sessiond.service.calls import Call
    from sessiond.service.catalogue import Catalogue
    from sessiond.service.context import Context
    from sessiond.service.turns import Turns

_MODELS_DEADLINE_S: Final = 2.0


class Gateway:
    """What the OpenAI-compatible edge calls."""

    def __init__(self, context: Context, catalogue: Catalogue, turns: Turns) -> None:
        self._context = context
        self._streams = context.streams
        self._router = Router(context, catalogue, turns)
        self.results = TurnResults(context, catalogue)  #: of the turns that were passed on

    async def parsed(self, data: bytes) -> JsonBody:
        """Return a call's body; other calls go on while a large one is read.

        :raises InvalidInputError: it is no JSON object.
        """
        return await by_size(self._context.blocking, len(data), parse_body, data)

    async def pass_on(self, call: Call) -> Passed:
        """Send a call to an engine; if that cannot be reached, to another, each once.

        :raises NotFoundError: the engine that had its ``previous_response_id`` is gone, or that
            is another tenant's.
        :raises OperationInProgressError: its session is being deleted.
        :raises UnavailableError: no engine can take it, or the one that did was lost.
        """
        where = await self._router.where(call)
        failed: EngineUnreachableError | None = None
        while True:
            try:
                passage = await self._router.passage(call, where)
            except UnavailableError as error:
                if failed is None:
                    raise
                raise failed from error
            try:
                return await self._sent(call, passage)
            except EngineLostError as error:
                await self.results.broken(passage, error)
                raise
            except EngineUnreachableError as error:
                failed = error
                where = replace(where, avoid=where.avoid | {passage.engine.engine_id})

    async def ask_of(self, tenant: TenantId, response_id: str, request: StreamRequest) -> Passed:
        """Send a request about a response of the tenant to the engine that has it.

        :raises NotFoundError: that engine is gone, or it is no response of the tenant.
        :raises UnavailableError: the engine does not answer.
        """
        engine_id = await self._router.engine_of(tenant, response_id)
        engine = await self._context.engines.get(engine_id)
        sent = replace(request, headers=forwarded_headers(request.headers))
        return Passed(Passage(engine), await self._streams.send(engine.url, sent))

    async def models(self) -> list[Mapping[str, object]]:
        """Return what the engines serve, each model once, as vLLM describes it."""
        live = await self._context.engines.live()
        told = await asyncio.gather(*(self._models_of(engine) for engine in live))
        known: dict[object, Mapping[str, object]] = {}
        for model in (model for models in told for model in models):
            known.setdefault(model.get("id"), model)
        return list(known.values())

    async def _sent(self, call: Call, passage: Passage) -> Passed:
        """Send a call. Until its first token a turn is on its way; it may restore meanwhile."""
        with ExitStack() as restoring:
            if passage.ticket is not None:
                restoring.enter_context(self._context.on_the_way.to(passage.engine.engine_id))
            if passage.ticket is not None and passage.ticket.plan is TurnPlan.LOAD:
                restoring.enter_context(self._context.restores.running())
            blocking, size_bytes = self._context.blocking, len(call.body.text)
            request = await by_size(blocking, size_bytes, self._request, call, passage)
            with self._counted(passage) as counted:
                answer = await self._streams.send(passage.engine.url, request)
                if answer.status == HTTPStatus.OK:
                    counted.pop_all()
            return Passed(passage, answer, restoring.pop_all())

    def _counted(self, passage: Passage) -> ExitStack:
        """Count what a turn computes; return what is to be closed if the engine does not do it."""
        counted, ticket = ExitStack(), passage.ticket
        if ticket is not None:
            work, now = self._context.plans.work, self._context.now
            key = ticket.session.tenant, ticket.session.session_id
            turn_id = ticket.permit.operation_id
            work.came(key, now())
            counted.callback(lambda: work.ended(key, turn_id, now()))
        return counted

    def _request(self, call: Call, passage: Passage) -> StreamRequest:
        body = forwarded_body(call.body, self._forwarded(call, passage))
        return StreamRequest("POST", call.endpoint.value, forwarded_headers(call.headers), body)

    def _forwarded(self, call: Call, passage: Passage) -> Forwarded:
        engine, ticket = passage.engine, passage.ticket
        keys, response_id = self._context.store.keys, None
        if call.endpoint is Endpoint.RESPONSES:
            response_id = responseids.new_response_id(keys, call.tenant, engine.engine_id)
        if ticket is None:
            adapter = engine.adapter(call.model)
            salt = keys.cache_salt(call.tenant, adapter.digest if adapter else "", engine.lossy)
            return Forwarded(salt, request_id=response_id)
        return Forwarded(
            ticket.permit.cache_salt,
            ticket.kv_transfer_params,
            model=None if engine.serves(call.model) else ticket.model,
            request_id=response_id,
        )

    async def _models_of(self, engine: EngineInfo) -> Sequence[Mapping[str, object]]:
        request = StreamRequest("GET", "/v1/models", ())
        try:
            async with asyncio.timeout(_MODELS_DEADLINE_S):
                answer = await self._streams.send(engine.url, request)
                try:
                    told = json.loads(await answer.read())["data"]
                finally:
                    answer.close()
            return [model for model in told if isinstance(model, dict)]
        except (UnavailableError, TimeoutError, ValueError, KeyError, TypeError):
            return _described(engine)


def _described(engine: EngineInfo) -> list[Mapping[str, object]]:
    """Return what the engine's own file tells of its models."""
    names = (engine.model, *(adapter.name for adapter in engine.adapters))
    return [
        {
            "id": name,
            "object": "model",
            "created": int(engine.started_unix_s),
            "owned_by": "vllm",
            "root": engine.model,
            "parent": engine.model if name != engine.model else None,
            "max_model_len": engine.max_model_tokens,
            "permission": [],
        }
        for name in names
    ]
