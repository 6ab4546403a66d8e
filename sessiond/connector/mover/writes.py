"""Writing a job's chunks with several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

from sessiond.connector.mover.failures import cause_of
from sessiond.connector.mover.priority import ReadGate
from sessiond.connector.mover.suspends import SuspendPlan
from sessiond.domain.errors import SessiondError
from sessiond.domain.reasons import Cause
from sessiond.store.priority import lower_this_thread


class Order:
    """Lets threads that work beside each other do one step of it one after the other."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._next = 0

    def wait_for(self, place: int) -> None:
        """Return when all places before this one were passed on."""
        with self._condition:
            self._condition.wait_for(lambda: self._next == place)

    def pass_on(self, place: int) -> None:
        """Let the next place have its turn, once it is this one's."""
        with self._condition:
            self._condition.wait_for(lambda: self._next == place)
            self._next += 1
            self._condition.notify_all()


class ChunkWriters:
    """Threads of low priority that encode and write chunks; they pause while a read waits.

    They encode beside each other, and write in the order in which the chunks were given.
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
        left, order = iter(enumerate(items)), Order()
        work = [
            self._pool.submit(self._work, plan, left, order, slot, on_chunk)
            for _ in range(min(self._threads, len(items)))
        ]
        wait(work)
        causes = [cause for one in work if (cause := one.result()) is not None]
        return causes[:1]

    def _work(
        self,
        plan: SuspendPlan,
        left: Iterator[tuple[int, list[int]]],
        order: Order,
        slot: Callable[[int], memoryview],
        on_chunk: Callable[[], None],
    ) -> Cause | None:
        for place, (index, slot_index) in left:  # each takes the next one: it may be shared
            try:
                if plan.has_failed:
                    return None
                self._gate.wait_until_idle()
                plan.append(index, slot(slot_index), partial(order.wait_for, place))
            except (SessiondError, OSError) as error:
                cause = cause_of(error)
                plan.fail(cause)
                return cause
            finally:
                order.pass_on(place)  # whatever happened: others wait for it
            on_chunk()
        return None
