"""A fake vLLM server with sessiond's connector: an ASGI application over a real store.

It speaks completions and the ticket protocol faithfully, and can be driven into what no real
engine can be driven into at will: lost answers, hang-ups, evictions, lies about cached tokens.
It computes nothing; its reply to a prompt is a function of the prompt.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import httpx
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sessiond.connector.attest import RESET, RESET_AGAIN
from sessiond.connector.fitness import unfit_cause
from sessiond.connector.requests import ArrivingRequest
from sessiond.connector.splits import confirmed
from sessiond.connector.turns import explained, turn_facts
from sessiond.domain.divergence import closest, meet
from sessiond.domain.engines import EngineInfo
from sessiond.domain.errors import SnapshotNotFoundError, StoreError, TicketError
from sessiond.domain.fingerprint import Fingerprint
from sessiond.domain.heads import Branch, Head, LastTurn, TurnSplit, begin_turn, end_turn, head_for
from sessiond.domain.ids import EngineId, SessionId, TenantId, new_hex_id
from sessiond.domain.keys import salt_hash
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tickets import ANSWER_PARAM, TICKET_PARAM, Ticket, TicketOp, verify
from sessiond.domain.tokens import (
    TokenIds,
    common_prefix_tokens,
    head_digest,
    token_ids,
    whole_chunk_tokens,
)
from sessiond.testing import fake_tokenizer
from sessiond.testing.fake_kv import FakeKv, KeepError, Wish, fake_fields
from sessiond.testing.fake_openai import FakeOpenAi
from sessiond.testing.fake_times import FakeTimes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from sessiond.store.store import Store

_VOCABULARY = 50_000
_NOTHING = {"available_tokens": 0, "loadable_tokens": 0}
_LIFETIME_S = 60.0


@dataclass
class Faults:
    """What goes wrong from now on; operations by the names of :class:`TicketOp`."""

    no_connector: bool = False  #: plain vLLM: tickets mean nothing
    lost_answers: set[str] = field(default_factory=set)  #: the work is done, the answer is not
    hangs: set[str] = field(default_factory=set)  #: nothing is done and nothing answered
    gates: dict[str, asyncio.Event] = field(default_factory=dict)  #: nothing is done before
    http_errors: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, Reason] = field(default_factory=dict)  #: ``ok`` is false, for this reason
    uncounted_tokens: int = 0  #: vLLM reports this many cached tokens too few
    no_details: bool = False  #: vLLM reports no cached tokens
    slow_s: float = 0.0  #: a suspend or resume takes this much longer
    unrenderable: bool = False  #: the chat template fails
    slow_tokenizer_s: float = 0.0  #: each call of the tokenizer takes this long
    drops_spaces: bool = False  #: texts of tokens lack spaces before commas
    stale_heads: int = 0  #: so many commits find that the head moved on
    #: So many tokens of each context are left once a suspend has stored something.
    left_after_store: int | None = None
    lost_recomputes: set[str] = field(default_factory=set)  #: as answers, of suspends that compute
    unrecomputable: Reason | None = None  #: suspends that compute are refused for this reason
    slow_to_compute: bool = False  #: suspends that compute do not end in time
    busy_resumes: int = 0  #: so many resumes find no room in the RAM tier
    unresettable: int = 0  #: so many resets of the caches fail
    slow_reset_s: float = 0.0  #: a reset takes this long
    no_reset: bool = False  #: vLLM runs without its development mode
    changed_files: bool = False  #: an attestation finds other files
    aborts: set[str] = field(default_factory=set)  #: vLLM aborts them, as a pause does
    deaths: set[str] = field(default_factory=set)  #: the connection is lost, nothing is done
    late_heads: bool = False  #: heads become files only when somebody asks for them


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    op: str  #: empty without a ticket
    prompt_tokens: int
    cache_salt: str
    model: str
    session: str = ""  #: of its ticket
    session_created_unix_us: int = 0  #: likewise


@dataclass
class _Call:
    prompt: TokenIds[int]
    salt: str
    max_tokens: int
    ticket: Ticket
    model: str


@dataclass(frozen=True)
class _Settled:
    facts: Mapping[str, Any]
    causes: tuple[Cause, ...] = ()


class FakeEngine:
    """One engine; alive from its making until :meth:`close`."""

    def __init__(
        self,
        store: Store,
        url: str = "http://engine",
        *,
        fields: Mapping[str, str | int] | None = None,
        ram_tier_chunks: int = 1024,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._now = now
        self.info = _info(url, fake_fields(fields), ram_tier_chunks, now())
        self.faults = Faults()
        self.times = FakeTimes()
        self.seen: list[Seen] = []
        self.replies: list[TokenIds[int]] = []  #: to the next turns; else functions of prompts
        self.aborted: list[str] = []  #: operations whose request was hung up on
        self._store = store
        self._kv = FakeKv(store, self.info)
        self._file = store.publish_engine(self.info)
        self._resident: dict[str, list[TokenIds[int]]] = {}
        self._heads: dict[tuple[str, str], Head] = {}
        self._late_heads: dict[tuple[str, str], Head] = {}
        self._settled: dict[str, asyncio.Future[_Settled]] = {}
        self.openai = FakeOpenAi(self)
        self._app = Starlette(
            routes=[
                Route("/health", self._health),
                *self.openai.routes(),
                Route("/tokenize", self._tokenize, methods=["POST"]),
                Route("/detokenize", self._detokenize, methods=["POST"]),
                Route("/reset_prefix_cache", self._reset, methods=["POST"]),
            ]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve as ASGI."""
        await self._app(scope, receive, send)

    def close(self) -> None:
        """End the engine, as its death would."""
        self._file.close()

    def update(self, **changes: Any) -> None:  # noqa: ANN401 - any field of EngineInfo
        """Change what the engine tells of itself."""
        self.info = replace(self.info, **changes)
        self._file.update(self.info)

    def evict(self, keep_tokens: int = 0) -> None:
        """Forget all KV but the first tokens of each context."""
        for salt, contexts in self._resident.items():
            self._resident[salt] = [tokens[:keep_tokens] for tokens in contexts]

    def reset(self) -> None:
        """Reset all caches, as sleep and pause do; the snapshot tier is off afterwards."""
        self._resident.clear()
        for head in list(self._heads.values()):
            now = replace(head, branches=(), sequence=head.sequence + 1, updated_unix_s=self._now())
            self.write_head(now)
        off = self.info.tier_off or RESET.detail
        self.update(tier_off=off, attestable=off == RESET.detail, resets=self.info.resets + 1)

    def begin_turn(self, tenant: TenantId, session_id: SessionId) -> None:
        """Let a turn be in flight from now on."""
        self.write_head(begin_turn(self._head(tenant, session_id), self._now()))

    def end_turn(self, tenant: TenantId, session_id: SessionId) -> None:
        """End a turn that left nothing."""
        self.write_head(end_turn(self._head(tenant, session_id), None, self._now()))

    async def _health(self, _request: Request) -> Response:
        return Response()

    async def _reset(self, request: Request) -> Response:
        await asyncio.sleep(self.faults.slow_reset_s)
        if self.faults.no_reset:
            return Response(status_code=404)
        assert request.query_params["reset_external"] == "true"
        failed = self.faults.unresettable > 0
        self.faults.unresettable -= failed
        if not failed:
            self.reset()
        return JSONResponse({"success": not failed})

    async def _tokenize(self, request: Request) -> Response:
        body = await request.json()
        await asyncio.sleep(self.faults.slow_tokenizer_s)
        if self.faults.unrenderable:
            return JSONResponse({"error": {"message": "The template fails."}}, 400)
        messages = body.get("messages")
        tokens = (
            fake_tokenizer.render(messages) if messages else fake_tokenizer.encode(body["prompt"])
        )
        return JSONResponse({"tokens": list(tokens), "count": len(tokens)})

    async def _detokenize(self, request: Request) -> Response:
        await asyncio.sleep(self.faults.slow_tokenizer_s)
        try:
            text = fake_tokenizer.decode((await request.json())["tokens"])
        except (ValueError, OverflowError):  # chr() knows no such letter
            return JSONResponse({"error": {"message": "No such token."}}, 400)
        return JSONResponse(
            {"prompt": text.replace(" ,", ",") if self.faults.drops_spaces else text}
        )

    async def complete(
        self, request: Request, body: Mapping[str, Any], prompt: TokenIds[int]
    ) -> Response:
        """Answer *request*, whose prompt has these tokens, as a completion."""
        salt = str(body.get("cache_salt") or "")
        text = (body.get("kv_transfer_params") or {}).get(TICKET_PARAM)
        ticket = self._verified(text, salt)
        op = ticket.op.value if ticket else ""
        model = str(body.get("model") or self.info.model)
        session = ticket.session if ticket else ""
        created_unix_us = ticket.session_created_unix_us if ticket else 0
        self.seen.append(Seen(op, len(prompt), salt, model, session, created_unix_us))
        if not self.info.serves(model):
            return JSONResponse({"error": {"message": f"No model {model!r}."}}, 404)
        if op in self.faults.http_errors:
            error = {"error": {"message": f"No. See /var/log/engine/{op}.log."}}
            return JSONResponse(error, self.faults.http_errors[op])
        computes = ticket is not None and bool(ticket.recomputes)
        if computes and self.faults.slow_to_compute:
            raise TimeoutError  # as if its sender had waited for long enough
        if op in self.faults.hangs:
            await self._hang(request, op)
        if op in self.faults.gates:
            await self.faults.gates[op].wait()
        if op in self.faults.deaths:
            raise httpx.ReadError("The connection was lost.")
        if op in self.faults.aborts:
            return JSONResponse(self._aborted())
        if ticket is None or self.faults.no_connector:
            wanted = int(body.get("max_tokens", 16))
            return JSONResponse(self._completion(prompt, salt, wanted, None))
        call = _Call(prompt, salt, int(body.get("max_tokens", 16)), ticket, model)
        response = await self._ticketed(request, call)
        if op in self.faults.lost_answers or (computes and op in self.faults.lost_recomputes):
            raise httpx.ReadError("The connection was lost.")
        return response

    def _verified(self, text: str | None, salt: str) -> Ticket | None:
        if not text:
            return None
        try:
            ticket = verify(text, self._store.keys.ticket_key, self._now())
        except TicketError:
            return None
        mine = ticket.engine_id == self.info.engine_id
        return ticket if mine and ticket.salt_hash == salt_hash(salt) else None

    async def _ticketed(self, request: Request, call: _Call) -> Response:
        op = call.ticket.op
        unfit = self._unfit_cause(call)
        if unfit is not None and op is TicketOp.TURN:
            return self._answer(call, ok=False, causes=(unfit,))
        if op.value in self.faults.refusals:
            return self._answer(call, ok=False, causes=(Cause(self.faults.refusals[op.value]),))
        if op in (TicketOp.COMMIT, TicketOp.OUTCOME):
            settled = await asyncio.wait_for(self._future(call.ticket), _LIFETIME_S)
            return self._answer(call, facts=settled.facts, causes=settled.causes)
        if op is not TicketOp.TURN:
            await asyncio.sleep(self.faults.slow_s)
        handlers: dict[TicketOp, Callable[[_Call], Awaitable[_Settled | Response]]] = {
            TicketOp.TURN: self._turn,
            TicketOp.SUSPEND: self._suspend,
            TicketOp.RESUME: self._resume,
            TicketOp.ATTEST: self._attest,
            TicketOp.HEADS: self._heads_written,
        }
        ended: _Settled | Response
        if unfit is not None:
            ended = _Settled({"committed": False, **_NOTHING}, (unfit,))
            self._settle(call.ticket, ended)
        else:
            ended = await handlers[op](call)
        if isinstance(ended, Response):
            return ended
        await self._hang(request, op.value)
        raise AssertionError("unreachable")

    def _unfit_cause(self, call: _Call) -> Cause | None:
        arriving = ArrivingRequest(
            request_id="",
            tokens=call.prompt,
            kv_transfer_params=None,
            cache_salt=call.salt,
            adapter=self.info.adapter(call.model),
            plain_text=True,
        )
        is_deleted = self._head_for(call.ticket) is None
        deleted = Cause(Reason.SESSION_DELETED) if is_deleted else None
        return unfit_cause(call.ticket, arriving) or deleted

    async def _turn(self, call: _Call) -> Response:
        split, causes = self._turn_split(call)
        reply = self.replies.pop(0) if self.replies else _reply(call.prompt, call.max_tokens)
        tokens = call.prompt + reply
        self._resident.setdefault(call.salt, []).append(tokens[:-1])
        branch = Branch(
            tokens=tokens,
            adapter_digest=call.ticket.adapter_digest,
            cache_salt_hash=salt_hash(call.salt),
            updated_unix_s=self._now(),
            split=split,
            adapter_name=call.model if call.ticket.adapter_digest else "",
        )
        known = self._head_for(call.ticket)
        assert known is not None  # or else it is unfit
        head = begin_turn(known, self._now())
        self.write_head(head)
        manifest = self._manifest(call.ticket)
        contexts = [one.tokens for one in head.branches] + ([manifest.tokens] if manifest else [])
        met = closest(meet(call.prompt, tokens) for tokens in contexts)
        timing = self.times.timing(split, manifest)
        turn = LastTurn(
            ended_unix_s=self._now(),
            split=split,
            tokens_total=met.tokens_total if met else 0,
            tokens_restorable=manifest.restorable_tokens if manifest else 0,
            diverged_at_token=met.diverged_at_token if met else None,
            causes=causes,
            turn_id=call.ticket.operation_id,
            timing=timing,
        )
        turn = explained(turn, call.ticket, self.info.chunk_tokens)
        is_known = manifest is not None and meet(call.prompt, manifest.tokens).goes_on
        self.write_head(end_turn(head, branch, self._now(), turn, is_known=is_known))
        facts = {"generation": call.ticket.generation, "timing": timing.as_json()}
        return self._answer(
            call, split=split, causes=turn.causes, facts={**facts, **turn_facts(turn)}
        )

    async def _suspend(self, call: _Call) -> _Settled | Response:
        asked = whole_chunk_tokens(len(call.prompt) - 1, self.info.chunk_tokens)
        resident = self._cached(call.prompt, call.salt)
        settled = self._refused_suspend(call, asked, resident)
        if settled is None:
            settled = self._kept(call, asked, resident)
        self._settle(call.ticket, settled)
        return self._answer(call) if settled.facts["committed"] else settled

    def _refused_suspend(self, call: _Call, asked: int, resident: int) -> _Settled | None:
        head = self._head_for(call.ticket)
        facts = {"committed": False, "available_tokens": resident}
        unfit = self._unfit_cause(call)
        if unfit is not None or head is None:
            return _Settled(facts, (unfit,) if unfit else ())
        if head.turns_in_flight or self.info.tier_off:
            off = Cause(Reason.TIER_OFF, self.info.tier_off)
            in_flight = Cause(Reason.TURN_IN_FLIGHT)
            return _Settled(facts, (in_flight if head.turns_in_flight else off,))
        digests = [head_digest(branch.tokens) for branch in head.branches]
        if self.faults.stale_heads or call.ticket.head_digest not in digests:
            self.faults.stale_heads = max(0, self.faults.stale_heads - 1)
            return _Settled(facts, (Cause(Reason.HEAD_STALE),))
        if call.ticket.recomputes and self.faults.unrecomputable:
            return _Settled(facts, (Cause(self.faults.unrecomputable),))
        if resident < asked and not call.ticket.recomputes:
            return _Settled(facts, (Cause(Reason.KV_EVICTED),))
        return None

    def _kept(self, call: _Call, asked: int, resident: int) -> _Settled:
        ticket, started_s = call.ticket, time.monotonic()
        head = self._head(TenantId(ticket.tenant), SessionId(ticket.session))
        tokens = next(
            branch.tokens
            for branch in head.branches
            if head_digest(branch.tokens) == ticket.head_digest
        )
        chunks = asked // self.info.chunk_tokens
        wish = Wish(
            head_tenant(head),
            head_session(head),
            ticket.generation,
            tokens,
            chunks,
            ticket.adapter_digest,
        )
        try:
            kept = self._kv.keep(wish, self.info.ram_tier_chunks)
        except KeepError as error:
            facts = {"committed": False, "available_tokens": resident}
            return _Settled(facts, (Cause(error.reason),))
        told = kept.facts(time.monotonic() - started_s)
        if resident < asked:
            self._resident.setdefault(call.salt, []).append(call.prompt[:-1])
        told["recomputed_tokens"] = asked - resident
        if self.faults.left_after_store is not None:
            self.evict(self.faults.left_after_store)
        return _Settled({"committed": True, "available_tokens": asked, **told})

    async def _heads_written(self, call: _Call) -> Response:
        late, self._late_heads = self._late_heads, {}
        for head in late.values():
            self._store.write_head(head)
        return self._answer(call, facts={"heads_written": True})

    async def _attest(self, call: _Call) -> Response:
        causes = self._refused_attestation(call.ticket)
        if not causes:
            self.update(tier_off="", attestable=False)
        return self._answer(call, facts={"tier_on": not causes}, causes=causes)

    def _refused_attestation(self, ticket: Ticket) -> tuple[Cause, ...]:
        if not self.info.attestable:
            return (Cause(Reason.TIER_OFF, self.info.tier_off),)
        if ticket.generation != self.info.resets:
            return (RESET_AGAIN,)
        if self.faults.changed_files:
            return (Cause(Reason.TIER_OFF, "changed since the engine started: model"),)
        return ()

    async def _resume(self, call: _Call) -> _Settled | Response:
        split, reason = self._look(call)
        asked = len(call.prompt) - 1
        if self.faults.busy_resumes:
            self.faults.busy_resumes -= 1
            split, reason = TurnSplit(), Reason.RAM_TIER_BUSY
        causes = (Cause(reason),) if reason else ()
        lacks = split.cached_tokens < asked
        manifest = self._manifest(call.ticket)
        timing = self.times.timing(split, manifest, computes=not lacks).as_json()
        if lacks:
            settled = _Settled({"loadable_tokens": split.cached_tokens, "timing": timing}, causes)
            self._settle(call.ticket, settled)
            return settled
        self._resident.setdefault(call.salt, []).append(call.prompt[:-1])
        return self._answer(call, split=split, causes=causes, facts={"timing": timing})

    def _turn_split(self, call: _Call) -> tuple[TurnSplit, tuple[Cause, ...]]:
        split, reason = self._look(call)
        causes = (Cause(reason),) if reason else ()
        counted_tokens = max(0, split.cached_tokens - self.faults.uncounted_tokens)
        if counted_tokens == split.cached_tokens:
            return split, causes
        return confirmed(split, counted_tokens), (*causes, Cause(Reason.NOT_CONFIRMED))

    def _look(self, call: _Call) -> tuple[TurnSplit, Reason | None]:
        """Return where the prompt's KV would come from, and why not more of it from disk."""
        vram = self._cached(call.prompt, call.salt)
        total, reason = vram, None
        manifest = self._manifest(call.ticket) if call.ticket.may_load else None
        if manifest is not None:
            loaded = self._kv.load(manifest, call.prompt[:-1])
            reach = vram + self.info.ram_tier_chunks * self.info.chunk_tokens
            total, reason = max(vram, min(loaded.tokens, reach)), loaded.reason
            if reach < loaded.tokens:
                reason = Reason.RAM_TIER_TOO_SMALL
            limit_s = call.ticket.load_limit_ms / 1000
            in_time = self.times.loaded_within(manifest, vram, limit_s) if limit_s else total
            if in_time < total:
                total, reason = max(vram, in_time), Reason.DEADLINE
        elif call.ticket.generation and call.ticket.may_load:
            reason = Reason.SNAPSHOT_MISSING
        return TurnSplit(len(call.prompt), vram, 0, total - vram), reason

    def _manifest(self, ticket: Ticket) -> Any:  # noqa: ANN401 - Manifest or None
        if not ticket.generation:
            return None
        try:
            return self._store.read_manifest(
                TenantId(ticket.tenant), SessionId(ticket.session), ticket.generation
            )
        except (StoreError, SnapshotNotFoundError):
            return None

    def _cached(self, prompt: TokenIds[int], salt: str) -> int:
        contexts = self._resident.get(salt, [])
        # The last token of a prompt is always computed.
        found = max((common_prefix_tokens(prompt[:-1], one) for one in contexts), default=0)
        return whole_chunk_tokens(found, self.info.chunk_tokens)

    def _answer(
        self,
        call: _Call,
        *,
        ok: bool = True,
        causes: tuple[Cause, ...] = (),
        facts: Mapping[str, Any] | None = None,
        split: TurnSplit | None = None,
    ) -> Response:
        cached = split.cached_tokens if split else self._cached(call.prompt, call.salt)
        ours: dict[str, Any] = {
            "engine_id": self.info.engine_id,
            "op": call.ticket.op.value,
            "ok": ok,
            "causes": [cause.as_json() for cause in causes],
            **(facts or {}),
        }
        if split:
            ours["split"] = {
                "prompt_tokens": split.prompt_tokens,
                "vram_tokens": split.vram_tokens,
                "ram_tokens": split.ram_tokens,
                "disk_tokens": split.disk_tokens,
            }
        body = self._completion(call.prompt, call.salt, call.max_tokens, cached)
        return JSONResponse({**body, "kv_transfer_params": {ANSWER_PARAM: ours}})

    def _completion(
        self, prompt: TokenIds[int], salt: str, max_tokens: int, cached: int | None
    ) -> dict[str, Any]:
        counted = self._cached(prompt, salt) if cached is None else cached
        usage: dict[str, Any] = {"prompt_tokens": len(prompt), "completion_tokens": max_tokens}
        if not self.faults.no_details:
            told = max(0, counted - self.faults.uncounted_tokens)
            usage["prompt_tokens_details"] = {"cached_tokens": told}
        choice = {"index": 0, "text": "", "token_ids": list(_reply(prompt, max_tokens))}
        return {"model": self.info.model, "choices": [choice], "usage": usage}

    def _aborted(self) -> dict[str, Any]:
        return {"model": self.info.model, "choices": [{"index": 0, "finish_reason": "abort"}]}

    async def _hang(self, request: Request, op: str) -> None:
        """Hold a request until its sender hangs up."""
        try:
            while not await request.is_disconnected():
                await asyncio.sleep(0.01)
        finally:
            self.aborted.append(op)
        raise httpx.ReadError("The sender hung up.")

    def _future(self, ticket: Ticket) -> asyncio.Future[_Settled]:
        loop = asyncio.get_running_loop()
        return self._settled.setdefault(ticket.operation_id, loop.create_future())

    def _settle(self, ticket: Ticket, settled: _Settled) -> None:
        self._future(ticket).set_result(settled)

    def _head(self, tenant: TenantId, session_id: SessionId) -> Head:
        empty = Head(tenant, session_id, self.info.engine_id, 0, 0, self._now(), ())
        return self._heads.get((tenant, session_id), empty)

    def _head_for(self, ticket: Ticket) -> Head | None:
        head = self._head(TenantId(ticket.tenant), SessionId(ticket.session))
        return head_for(head, ticket.session_created_unix_us)

    def write_head(self, head: Head) -> None:
        """Let the engine know, and tell, this of a session."""
        self._heads[head.tenant, head.session] = head
        if self.faults.late_heads:
            self._late_heads[head.tenant, head.session] = head
        else:
            self._store.write_head(head)


def _info(
    url: str, facts: Mapping[str, str | int], ram_tier_chunks: int, now_unix_s: float
) -> EngineInfo:
    return EngineInfo(
        engine_id=EngineId(new_hex_id()),
        url=url,
        model="smol",
        pid=os.getpid(),
        started_unix_s=now_unix_s,
        heartbeat_unix_s=now_unix_s,
        fingerprint=Fingerprint(facts),
        chunk_tokens=int(facts["chunk_tokens"]),
        chunk_bytes=4096,
        ram_tier_chunks=ram_tier_chunks,
        max_model_tokens=8192,
        vllm_version="0.32.0",
        lossy=str(facts.get("lossy", "")),
    )


def head_tenant(head: Head) -> TenantId:
    """Return the head's tenant."""
    return TenantId(head.tenant)


def head_session(head: Head) -> SessionId:
    """Return the head's session."""
    return SessionId(head.session)


def _reply(prompt: TokenIds[int], max_tokens: int) -> TokenIds[int]:
    seed = hashlib.sha256(prompt.tobytes()).digest()
    return token_ids(
        int.from_bytes(hashlib.sha256(seed + at.to_bytes(4, "big")).digest()[:4], "big")
        % _VOCABULARY
        for at in range(max_tokens)
    )
