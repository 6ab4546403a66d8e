"""Writing a job's chunks with several threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait

from sessiond.connector.mover.failures import cause_of
from sessiond.connector.mover.priority import ReadGate
from sessiond.connector.mover.suspends import SuspendPlan
from sessiond.domain.errors import SessiondError
from sessiond.domain.reasons import Cause
from sessiond.store.priority import lower_this_thread


class ChunkWriters:
    """Threads of low priority that encode and write chunks; they pause while a read waits.

    Chunks are taken in order, so frames lie in the order of a resume up to a few places.
    """

    def __init__(self, threads: int, gate: ReadGate) -> None:
        self._pool = ThreadPoolExecutor(threads, "encode", initializer=lower_this_thread)
        self._threads = threads
        self._gate = gate

    def write(
        self,
        plan: SuspendPlan,
        items: list[list[int]],
        slot: Callable[[int], memoryview],
        on_chunk: Callable[[], None],
    ) -> list[Cause]:
        """Append chunks to a plan; returns when no thread works on any of them.

        The first failure ends the job, and fails the plan.

        :param items: pairs of (chunk index, slot)
        :param on_chunk: called after each chunk
        :return: the failure's cause, or nothing
        """
        left = iter(items)
        work = [
            self._pool.submit(self._work, plan, left, slot, on_chunk)
            for _ in range(min(self._threads, len(items)))
        ]
        wait(work)
        causes = [cause for one in work if (cause := one.result()) is not None]
        return causes[:1]

    def _work(
        self,
        plan: SuspendPlan,
        left: Iterator[list[int]],
        slot: Callable[[int], memoryview],
        on_chunk: Callable[[], None],
    ) -> Cause | None:
        for index, slot_index in left:  # each takes the next one; a list's iterator allows that
            if plan.has_failed:
                return None
            self._gate.wait_until_idle()
            try:
                plan.append(index, slot(slot_index))
            except (SessiondError, OSError) as error:
                cause = cause_of(error)
                plan.fail(cause)
                return cause
            on_chunk()
        return None
