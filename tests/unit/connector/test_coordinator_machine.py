"""A coordinator under random requests, a random mover and random deaths."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sessiond.connector.attest import RESET
from sessiond.connector.mover import protocol
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tickets import TicketOp
from sessiond.testing.fake_mover import FakeClock, FakeMover, FakeMovers
from sessiond.testing.fake_scheduler import (
    CHUNK_TOKENS,
    LIMITS,
    RAM_CHUNKS,
    FakeScheduler,
    tokens_of,
)

SESSIONS = st.sampled_from(["s-1", "s-2"])
SOME_CAUSES = st.sampled_from([[], [dict(Cause(Reason.SNAPSHOT_CORRUPT).as_json())]])
UNANSWERED = protocol.WriteHead | protocol.ClosePlan | protocol.DiscardSuspend
LONGER_THAN_ALL_S = LIMITS.hold_deadline_s + 1


@dataclass
class Seen:
    """What vLLM knows of one request."""

    op: TicketOp
    chunks: int
    mover: FakeMover  #: when it arrived
    plan: int | None = None  #: of a suspend
    load_plan: int | None = None
    loaded: set[int] = field(default_factory=set)
    scheduled: bool = False
    external: bool = False
    well: bool = False
    outdated: bool = False  #: it was there when the caches were reset


class CoordinatorMachine(RuleBasedStateMachine):
    """Invariants hold whatever happens, and in the end everybody is served."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.live: dict[str, Seen] = {}
        self.over: dict[str, Seen] = {}
        self.jobs: dict[int, tuple[str, list[int]]] = {}
        self.next_job = 1
        self.operations = 0

    @initialize(die_at_once=st.booleans())
    def begin(self, *, die_at_once: bool) -> None:
        self.clock = FakeClock()
        self.stack.enter_context(self.clock.installed())
        self.vllm = FakeScheduler(self.clock, FakeMovers(die_at_once=die_at_once))

    # Requests arrive

    def note(self, request: str, op: TicketOp, chunks: int) -> None:
        mover = self.vllm.mover
        seen = self.live[request] = Seen(op, chunks, mover)
        match mover.sent[-1] if mover.sent else None:
            case protocol.OpenSuspend(plan_id=plan) if self.vllm.coordinator.is_suspend(request):
                seen.plan = plan
            case protocol.OpenLoad(plan_id=plan) if plan not in self.plans():
                seen.load_plan = plan

    def plans(self) -> set[int | None]:
        return {seen.load_plan for seen in (*self.live.values(), *self.over.values())}

    def operation(self) -> str:
        self.operations += 1
        return f"op-{self.operations}"

    @rule(session=SESSIONS, generation=st.integers(0, 2), chunks=st.integers(0, RAM_CHUNKS + 4))
    def turn(self, session: str, generation: int, chunks: int) -> None:
        ticket = self.vllm.ticket(session=session, generation=generation)
        self.note(self.vllm.arrive(ticket, tokens_of(chunks)), TicketOp.TURN, chunks)

    @rule(session=SESSIONS, chunks=st.integers(1, RAM_CHUNKS + 4), with_outcome=st.booleans())
    def resume(self, *, session: str, chunks: int, with_outcome: bool) -> None:
        fields: dict[str, Any] = {"session": session, "operation_id": self.operation()}
        ticket = self.vllm.ticket(TicketOp.RESUME, generation=1, **fields)
        self.note(self.vllm.arrive(ticket, tokens_of(chunks)), TicketOp.RESUME, chunks)
        if with_outcome:
            self.note(self.vllm.outcome(**fields), TicketOp.OUTCOME, 0)

    @rule(
        session=SESSIONS, chunks=st.integers(1, RAM_CHUNKS + 4), cut=st.integers(0, 2),
        stale=st.booleans(), with_commit=st.booleans(),
    )  # fmt: skip
    def suspend(
        self, *, session: str, chunks: int, cut: int, stale: bool, with_commit: bool
    ) -> None:
        fields: dict[str, Any] = {"session": session, "operation_id": self.operation()}
        if not stale:
            self.vllm.take_turn(tokens_of(chunks), session=session)
        head, chunks = tokens_of(chunks), max(1, chunks - cut)
        request = self.vllm.begin_suspend(head, chunks, **fields)
        self.note(request, TicketOp.SUSPEND, chunks)
        if with_commit:
            self.note(self.vllm.commit(**fields), TicketOp.COMMIT, 0)

    @rule()
    def forged(self) -> None:
        request = self.vllm.arrive("v1.x.y", tokens_of(1))
        assert self.vllm.may_match(request)
        assert self.vllm.finish(request)["ok"] is False

    # vLLM works on them

    @precondition(lambda self: self.live)
    @rule(data=st.data(), vram_tokens=st.integers(0, 20), submits=st.booleans())
    def look(self, data: st.DataObject, *, vram_tokens: int, submits: bool) -> None:
        request = data.draw(st.sampled_from(sorted(self.live)))
        seen = self.live[request]
        if any(owner == request for owner, _ in self.jobs.values()):
            return  # vLLM waits for transfers
        if seen.plan is not None:
            vram_tokens *= 3  # a suspend comes soon after its turn
        vram_tokens = min(vram_tokens, seen.chunks * CHUNK_TOKENS)
        if not self.vllm.may_match(request, vram_tokens):
            return
        first = vram_tokens // CHUNK_TOKENS
        missing = [c for c in range(first, seen.chunks) if c not in seen.loaded]
        offered = self.vllm.offered(request, missing)
        assert len(offered) <= RAM_CHUNKS
        if offered and submits:
            self.submit(request, offered)
            return
        found = first
        while found in seen.loaded:
            found += 1
        external = max(0, found * CHUNK_TOKENS - vram_tokens)
        if self.vllm.match(request, vram_tokens, external):
            seen.scheduled, seen.external = True, external > 0

    def submit(self, request: str, chunks: list[int]) -> None:
        self.jobs[self.next_job] = (request, chunks)
        self.vllm.load(self.next_job, request, chunks)
        self.next_job += 1

    @precondition(lambda self: any(seen.external for seen in self.live.values()))
    @rule(data=st.data())
    def copied(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from([r for r, s in self.live.items() if s.external]))
        self.vllm.coordinator.in_vram(request)
        self.live[request].external = False

    @precondition(lambda self: any(seen.plan and seen.scheduled for seen in self.live.values()))
    @rule(data=st.data())
    def store(self, data: st.DataObject) -> None:
        known = [r for r, seen in self.live.items() if seen.plan and seen.scheduled]
        request = data.draw(st.sampled_from(known))
        chunks = self.vllm.storable(request, range(self.live[request].chunks + 1))
        if chunks:
            self.jobs[self.next_job] = (request, chunks)
            self.vllm.store(self.next_job, request, chunks)
            self.next_job += 1

    @precondition(lambda self: self.live)
    @rule(data=st.data(), aborted=st.booleans())
    def finish(self, data: st.DataObject, *, aborted: bool) -> None:
        request = data.draw(st.sampled_from(sorted(self.live)))
        self.end(request, aborted=aborted or not self.live[request].scheduled)

    def end(self, request: str, *, aborted: bool) -> None:
        seen = self.over[request] = self.live.pop(request)
        seen.well = not aborted
        answer = self.vllm.abort(request) if aborted else self.vllm.finish(request)
        assert answer["op"] == seen.op
        if seen.op in (TicketOp.COMMIT, TicketOp.OUTCOME) and not aborted:
            assert "committed" in answer or "loadable_tokens" in answer

    @rule()
    def collect(self) -> None:
        for done in self.vllm.done():
            request, chunks = self.jobs.pop(done.job_id)  # known, and not reported before
            assert done.good_chunks <= set(chunks)
            assert not done.all_good or done.good_chunks == set(chunks)
            if request in self.live:
                self.live[request].loaded |= done.good_chunks

    # The mover works, or does not

    @rule(data=st.data(), causes=SOME_CAUSES, number=st.integers(0, RAM_CHUNKS + 4))
    def answer(self, data: st.DataObject, causes: list[dict[str, Any]], number: int) -> None:
        questions = [
            message for message in self.vllm.mover.sent if not isinstance(message, UNANSWERED)
        ]
        if not questions:
            return
        question = data.draw(st.sampled_from(questions))
        # Taken, so that nothing is answered twice.
        self.vllm.mover.sent.remove(question)
        self.vllm.mover.answer(self.answer_to(question, causes, number))

    def answer_to(
        self, question: protocol.Message, causes: list[dict[str, Any]], number: int
    ) -> protocol.Message:
        match question:
            case protocol.OpenLoad():
                return protocol.LoadOpened(question.plan_id, list(range(number)), causes)
            case protocol.Load():
                chunks = [chunk for chunk, _ in question.items]
                return protocol.LoadDone(question.job_id, chunks[number:], causes, 0.1, 10)
            case protocol.OpenSuspend():
                return protocol.SuspendOpened(question.plan_id, list(range(number % 3)), causes)
            case protocol.Store():
                return protocol.StoreDone(question.job_id, causes)
            case protocol.FinishSuspend():
                self.must_be_allowed(question)
                snapshot = {"generation": 1} if question.commit and not causes else None
                return protocol.SuspendFinished(question.plan_id, snapshot, causes)
        raise AssertionError(question)

    @rule()
    def die(self) -> None:
        self.vllm.mover.die()

    @rule()
    def be_gone(self) -> None:
        if self.vllm.mover.killed:
            self.vllm.mover.gone = True

    @rule(seconds=st.sampled_from([0.1, 5.0, 31.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.clock.sleep(seconds)

    @precondition(lambda self: self.operations > 6)
    @rule()
    def turn_off(self) -> None:
        self.vllm.coordinator.turn_off(Cause(Reason.TIER_OFF))

    @precondition(lambda self: self.operations > 2)
    @rule()
    def reset(self) -> None:
        self.vllm.coordinator.caches_reset(emptied=True)
        for seen in self.live.values():
            seen.outdated = True

    @rule()
    def attest(self) -> None:
        coordinator = self.vllm.coordinator
        was_off, resets = coordinator.tier.off, coordinator.tier.attestor.resets
        fields = {"generation": resets, "operation_id": self.operation()}
        request = self.vllm.arrive(self.vllm.ticket(TicketOp.ATTEST, **fields), tokens_of(0))
        while not self.vllm.may_match(request):
            time.sleep(0.0001)  # a thread looks at the files
        on = self.vllm.finish(request)["tier_on"]
        assert on == (coordinator.tier.off is None)
        assert not on or was_off in (None, RESET)

    # What must hold

    def must_be_allowed(self, asked: protocol.FinishSuspend) -> None:
        (seen,) = (seen for seen in self.over.values() if seen.plan == asked.plan_id)
        assert not asked.commit or (seen.well and not seen.outdated)

    @invariant()
    def nothing_is_offered_after_a_plan_was_closed(self) -> None:
        for request in self.over:
            assert self.vllm.offered(request, range(3)) == []
        for request, seen in self.live.items():
            if seen.mover.killed or protocol.ClosePlan(seen.load_plan or 0) in seen.mover.sent:
                assert self.vllm.offered(request, range(3)) == []

    @invariant()
    def nothing_is_offered_to_what_a_reset_has_met(self) -> None:
        for request, seen in self.live.items():
            if seen.outdated:
                assert self.vllm.offered(request, range(RAM_CHUNKS)) == []

    @invariant()
    def every_commit_is_allowed(self) -> None:
        for asked in self.vllm.mover.told(protocol.FinishSuspend) if self.over else ():
            self.must_be_allowed(asked)

    @invariant()
    def nothing_is_offered_when_off(self) -> None:
        if hasattr(self, "vllm") and self.vllm.coordinator.tier.off is not None:
            for request in self.live:
                assert self.vllm.offered(request, range(RAM_CHUNKS)) == []

    def teardown(self) -> None:
        """In the end everybody is served, every job has ended, and nothing is left to do."""
        if not hasattr(self, "vllm"):
            return
        with self.stack:
            self.clock.sleep(LONGER_THAN_ALL_S)
            for _ in range(2):  # a replacement may be dead, too
                self.vllm.coordinator.poll()
                self.vllm.mover.gone = self.vllm.mover.killed
            self.collect()
            for request in list(self.live):
                assert self.vllm.may_match(request)
                assert self.vllm.match(request)
                self.end(request, aborted=False)
            self.vllm.mover.die()
            for _ in range(2):
                self.vllm.coordinator.poll()
                self.vllm.mover.gone = self.vllm.mover.killed
            self.collect()
            assert self.jobs == {}
            self.vllm.coordinator.poll()  # the heads were written
            assert not self.vllm.coordinator.has_work()


TestCoordinatorMachine = CoordinatorMachine.TestCase
TestCoordinatorMachine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
