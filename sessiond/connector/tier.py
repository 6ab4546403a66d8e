"""The cold tier that vLLM loads by name: translates its calls for the coordinator.

Until the connector has attached a coordinator, and whenever something of ours fails, it answers
like a tier that holds nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from vllm.v1.kv_offload.base import (
    LookupResult,
    Medium,
    OffloadPolicy,
    RequestOffloadingContext,
    get_offload_group_idx,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from sessiond.connector.guard import guarded

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from vllm.v1.kv_offload.base import OffloadingSpec, OffloadKey, ReqContext

    from sessiond.connector.coordinator import Coordinator
    from sessiond.connector.moverwatch import JobDone


class SnapshotTier(SecondaryTierManager):
    """Snapshots of sessions, below vLLM's RAM tier. No method blocks."""

    medium: ClassVar[Medium | None] = Medium.STORAGE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._coordinator: Coordinator | None = None
        self._keys_of_jobs: dict[int, dict[int, OffloadKey]] = {}
        self._results: list[JobResult] = []
        self._given_up: set[str] = set()
        #: Whether some KV group forgets old tokens; until it is known, that is assumed.
        self.windowed = True

    @property
    def spec(self) -> OffloadingSpec:
        """The spec that created this tier."""
        return self._offloading_spec

    def attach(self, coordinator: Coordinator) -> None:
        """Begin to work."""
        self._coordinator = coordinator
        self.windowed = coordinator.limits.groups.windowed

    # --- for vLLM ------------------------------------------------------------------------

    @guarded(LookupResult.MISS)
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Whether the snapshot that the request's ticket names holds this chunk."""
        return LookupResult.HIT if self.offers(key, req_context) else LookupResult.MISS

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Have chunks read into slots of the RAM tier."""
        if not self._submit_load(job_metadata):
            # Otherwise vLLM would find, and promote, the same chunks again and again.
            self._given_up.add(job_metadata.req_context.req_id)
            self._results.append(JobResult(job_metadata.job_id, success=False))

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Have chunks written, if their request is a suspend."""
        if not self._submit_store(job_metadata):
            self._results.append(JobResult(job_metadata.job_id, success=False))

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Return the jobs that ended since the last call."""
        results, self._results = self._results, []
        for done in self._take_done():
            results.append(self._result(done) or JobResult(done.job_id, success=False))
        return results

    @guarded(False)  # noqa: FBT003 - the value returned instead of raising
    def has_pending_work(self) -> bool:
        """Whether the engine must keep stepping for us."""
        return self._coordinator is not None and self._coordinator.has_work()

    @guarded(RequestOffloadingContext())
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """A suspend hands over all of its chunks, those in VRAM and RAM included."""
        if self.is_suspend(req_context):
            return RequestOffloadingContext(policy=OffloadPolicy.REQUEST_LEVEL)
        return RequestOffloadingContext()

    @guarded(None)
    def on_request_finished(self, req_context: ReqContext) -> None:
        """No more chunks of this request will come."""
        self._given_up.discard(req_context.req_id)
        if self._coordinator is not None:
            self._coordinator.submits_over(req_context.req_id)

    def drain_jobs(self) -> None:
        """Block until every job has ended; a mover that does not end them is replaced."""
        if self._coordinator is not None and not self._drained():
            # vLLM takes for granted that none is left, and uses their slots for something else.
            self._end_jobs()

    def shutdown(self) -> None:
        """End the mover."""
        if self._coordinator is not None:
            self._shut_down()

    # --- for the manager -----------------------------------------------------------------

    @guarded(False)  # noqa: FBT003 - the value returned instead of raising
    def offers(self, key: OffloadKey, req_context: ReqContext) -> bool:
        """Whether the chunk can come from disk."""
        if self._coordinator is None or req_context.req_id in self._given_up:
            return False
        return self._coordinator.offers(
            req_context.req_id, _chunk(self._coordinator, key, req_context)
        )

    @guarded(False)  # noqa: FBT003 - the value returned instead of raising
    def is_suspend(self, req_context: ReqContext) -> bool:
        """Whether the request hands its KV over."""
        return self._coordinator is not None and self._coordinator.is_suspend(req_context.req_id)

    @guarded(False)  # noqa: FBT003 - the value returned instead of raising
    def keeps_promoted(self, req_context: ReqContext) -> bool:
        """Whether promoted chunks of the request must stay until they are copied."""
        return self._coordinator is not None and self._coordinator.keeps_promoted(
            req_context.req_id
        )

    @guarded(())
    def storable(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> Sequence[OffloadKey]:
        """Return those of a suspend's chunks that are worth handing over, in the same order."""
        assert self._coordinator is not None
        chunks = [_chunk(self._coordinator, key, req_context) for key in keys]
        wanted = self._coordinator.storable(req_context.req_id, chunks)
        return [key for key, chunk in zip(keys, chunks, strict=True) if chunk in wanted]

    @guarded(())
    def first_half(
        self, keys: Sequence[OffloadKey], req_context: ReqContext
    ) -> Sequence[OffloadKey]:
        """Return the chunks of the first half of the token range, of every group."""
        ends = sorted({_end(key, req_context) for key in keys})
        limit = ends[len(ends) // 2 - 1] if len(ends) > 1 else 0
        return [key for key in keys if _end(key, req_context) <= limit]

    @guarded(None)
    def in_vram(self, req_context: ReqContext) -> None:
        """The request's chunks are in VRAM."""
        if self._coordinator is not None:
            self._coordinator.in_vram(req_context.req_id)

    # --- guarded insides -----------------------------------------------------------------

    @guarded(False)  # noqa: FBT003 - the value returned instead of raising
    def _submit_load(self, job: TransferJob) -> bool:
        if self._coordinator is None:
            return False
        chunks = [_chunk(self._coordinator, key, job.req_context) for key in job.keys]
        self._keys_of_jobs[job.job_id] = dict(zip(chunks, job.keys, strict=True))
        slots = (int(slot) for slot in job.chunk_ids)
        self._coordinator.load(job.job_id, job.req_context.req_id, zip(chunks, slots, strict=True))
        return True

    @guarded(False)  # noqa: FBT003 - the value returned instead of raising
    def _submit_store(self, job: TransferJob) -> bool:
        if self._coordinator is None:
            return False
        chunks = [_chunk(self._coordinator, key, job.req_context) for key in job.keys]
        slots = (int(slot) for slot in job.chunk_ids)
        self._coordinator.store(job.job_id, job.req_context.req_id, zip(chunks, slots, strict=True))
        return True

    @guarded(())
    def _take_done(self) -> Iterable[JobDone]:
        return () if self._coordinator is None else self._coordinator.take_done()

    @guarded(None)
    def _result(self, done: JobDone) -> JobResult:
        keys = self._keys_of_jobs.pop(done.job_id, {})
        return JobResult(
            job_id=done.job_id,
            success=done.all_good,
            successful_keys=[keys[chunk] for chunk in sorted(done.good_chunks & keys.keys())],
            transfer_time=done.seconds,
            transfer_bytes=done.moved_bytes,
        )

    @guarded(False)  # noqa: FBT003 - the value returned instead of raising
    def _drained(self) -> bool:
        assert self._coordinator is not None
        self._coordinator.drain()
        return True

    @guarded(None)
    def _end_jobs(self) -> None:
        assert self._coordinator is not None
        self._coordinator.end_jobs()

    @guarded(None)
    def _shut_down(self) -> None:
        assert self._coordinator is not None
        self._coordinator.close()


def _end(key: OffloadKey, req_context: ReqContext) -> int:
    """Return the token position at which the chunk ends; 0 for one without a position."""
    return req_context.get_offload_key_position(key) or 0


def _chunk(coordinator: Coordinator, key: OffloadKey, req_context: ReqContext) -> int:
    """Return the chunk's number; a negative one for a chunk without a position."""
    end_token = _end(key, req_context)
    return coordinator.limits.chunk_at(end_token, get_offload_group_idx(key))
