"""What a suspend is about, and what it amounts to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING

from sessiond.domain.errors import SuspendSkippedError
from sessiond.domain.kvgroups import groups_of
from sessiond.domain.outcomes import SuspendReport
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.session import OnEvicted
from sessiond.domain.tokens import whole_chunk_tokens
from sessiond.service.judge import summarize
from sessiond.service.suspend_rounds import Progress, error_of

if TYPE_CHECKING:
    from sessiond.domain.heads import Branch
    from sessiond.domain.session import Session
    from sessiond.domain.snapshot import Manifest, SnapshotSummary
    from sessiond.service.engines import Located
    from sessiond.service.operations import Claim


class SuspendBy(Enum):
    """Who wants a session to be suspended."""

    CLIENT = auto()  #: who may just have got the answer of a turn
    SWEEP = auto()  #: nobody; the session has been idle for long
    DRAIN = auto()  #: which looks again when the engine has told of all that has ended there


@dataclass(frozen=True)
class Source:
    """The KV that a suspend stores."""

    located: Located
    branch: Branch
    tokens: int  #: in whole chunks

    @property
    def model(self) -> str:
        """The name under which the engine knows what computed it."""
        return self.branch.adapter_name or self.located.engine.model

    @property
    def hindrance(self) -> Cause | None:
        """Why the engine would not hand it over, as far as its file tells."""
        if not self.branch.adapter_digest:
            return None
        # By name, although content decides: vLLM's keys have the name, so under another one it
        # finds nothing of this.
        adapter = self.located.engine.adapter(self.branch.adapter_name)
        if adapter is not None and adapter.digest in ("", self.branch.adapter_digest):
            return _momentary(adapter.cause(), self.located)
        return Cause(
            Reason.ADAPTER_MISMATCH,
            detail=f"adapter {self.branch.adapter_name!r}",
            stored=self.branch.adapter_digest,
            live=adapter.digest if adapter else None,
        )


def unkept_cause(located: Located) -> Cause | None:
    """Return why a suspend would leave out the newest turn, if it would."""
    return _momentary(located.head.unkept_cause, located)


def _momentary(cause: Cause | None, located: Located) -> Cause | None:
    """Tell an adapter whose files are still being read from one that stays unproven."""
    pending = (adapter.cause() for adapter in located.engine.adapters if adapter.pending)
    if cause is None or cause not in pending:
        return cause
    return Cause(Reason.IDENTITY_PENDING, cause.detail)


@dataclass(frozen=True)
class Plan:
    """What a suspend is going to do."""

    session: Session
    newest: Manifest | None  #: the newest snapshot that can be read
    source: Source | None  #: ``None``: no live engine has more than the snapshot
    kept_tokens: int = 0  #: of the source, in the newest snapshot already
    on_evicted: OnEvicted = OnEvicted.PREFIX
    causes: tuple[Cause, ...] = ()  #: why there is no source, though an engine has KV
    doubts: tuple[Cause, ...] = ()  #: why an engine may have more than its heads tell of

    def claim(self, wanted: Claim) -> Claim:
        """Return a claim that tells what is going to be done."""
        return replace(
            wanted,
            on_evicted=self.on_evicted,
            changed_unix_s=self.source.branch.updated_unix_s if self.source else 0.0,
            doubts=bool(self.doubts),
            planned_unix_s=self.session.created_unix_s,
        )


def begin(plan: Plan) -> Progress:
    """Return the state before the first round of a plan that has a source."""
    assert plan.source is not None
    first, then = stops(plan.source, plan.kept_tokens)
    return Progress(
        chunk_tokens=plan.source.located.engine.chunk_tokens,
        asked_tokens=first,
        kept_tokens=plan.kept_tokens,
        then_tokens=then,
        source_tokens=plan.source.tokens,
        on_evicted=plan.on_evicted,
        doubts=plan.doubts,
    )


def moved_on(progress: Progress, plan: Plan) -> Progress:
    """Return the state before a round for another head than the last one was for."""
    assert plan.source is not None
    first, then = stops(plan.source, plan.kept_tokens)
    return replace(
        progress,
        asked_tokens=first,
        then_tokens=then,
        source_tokens=plan.source.tokens,
        kept_tokens=plan.kept_tokens,
        doubts=plan.doubts,
        # What was gone of the last head, the turn that moved on has most likely computed again.
        trimmed=(),
        recomputes=False,
        available_tokens=0,
        evicted_tokens=0,
    )


def stops(source: Source, kept: int) -> tuple[int, int]:
    """Return for how many tokens to ask, and then for how many more.

    With sliding windows a context can be restored only up to where a window was kept. The next
    turn's prompt may differ within the last reply, which is rendered anew, so the window at the
    end of the last prompt is kept as well.
    """
    engine = source.located.engine
    windowed = groups_of(engine.fingerprint, engine.chunk_tokens).windowed
    prompt = whole_chunk_tokens(source.branch.split.prompt_tokens, engine.chunk_tokens)
    if windowed and kept < prompt < source.tokens:
        return prompt, source.tokens
    return source.tokens, 0


def report(source: Source, progress: Progress, seconds: float) -> SuspendReport:
    """Return what a suspend that has ended amounts to.

    :raises SessiondError: nothing was stored
    """
    best = progress.best
    if best is None:
        raise error_of(progress.causes)
    earlier_bytes = (
        progress.new_bytes - best.new_bytes
    )  # new to this suspend, not to its last round
    return SuspendReport(
        snapshot=replace(
            best,
            new_bytes=progress.new_bytes,
            shared_bytes=max(0, best.shared_bytes - earlier_bytes),
        ),
        rounds=progress.rounds,
        missing_tokens=max(0, source.tokens - best.tokens_restorable),
        causes=(*progress.causes, *progress.doubts),
        seconds=seconds,
        evicted_tokens=progress.evicted_tokens,
        recomputed_tokens=progress.recomputed_tokens,
    )


def skipped(source: Source, progress: Progress) -> SuspendSkippedError:
    """Return the error of a suspend that stores nothing because something is gone."""
    there, all_tokens = progress.available_tokens, source.tokens
    detail = f"{there} of {all_tokens} tokens are still there"
    return SuspendSkippedError(
        f"Nothing was stored: {detail}, and 'on_evicted' is skip.",
        causes=(Cause(Reason.KV_EVICTED, detail),),
    )


def is_evicted(causes: tuple[Cause, ...]) -> bool:
    """Whether KV was gone before it could be stored."""
    return any(cause.reason is Reason.KV_EVICTED for cause in causes)


def report_newest(plan: Plan, causes: tuple[Cause, ...], evicted_tokens: int = 0) -> SuspendReport:
    """Report that the newest snapshot has already what there is."""
    assert plan.newest is not None
    known = plan.session.snapshot
    if known is None or known.generation != plan.newest.generation:
        known = summarize(plan.newest, None, plan.session.model, seconds=0.0)
    return SuspendReport(
        snapshot=_nothing_new(known),
        rounds=0,
        missing_tokens=plan.source.tokens - plan.kept_tokens if plan.source else 0,
        causes=(*causes, *plan.doubts),
        seconds=0.0,
        evicted_tokens=evicted_tokens,
    )


def _nothing_new(summary: SnapshotSummary) -> SnapshotSummary:
    return replace(summary, new_bytes=0, shared_bytes=summary.stored_bytes, seconds=0.0)
