"""One load, that several threads work on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sessiond.connector.mover import protocol
from sessiond.connector.mover.failures import as_json, cause_of
from sessiond.connector.mover.loads import Filling, LoadPlan


class LoadJob:
    """A load job of the tier; it is answered when the last of its threads has ended.

    :param threads: how many will :meth:`work`
    """

    def __init__(self, job_id: int, plan: LoadPlan, filling: Filling, threads: int) -> None:
        self.plan = plan
        self._job_id = job_id
        self._filling = filling
        self._began_s = time.monotonic()
        self._lock = threading.Lock()
        self._threads_left = threads

    def work(self, on_run: Callable[[], None]) -> protocol.LoadDone | None:
        """Fill slots until nothing is left; the last thread returns the answer."""
        self._filling.work(on_run)
        with self._lock:
            self._threads_left -= 1
            return None if self._threads_left else self._answer()

    def _answer(self) -> protocol.LoadDone:
        results = self._filling.results()
        errors = [error for error in results.values() if error is not None]
        read = [index for index, error in results.items() if error is None]
        spent = self._filling.spent()
        return protocol.LoadDone(
            job_id=self._job_id,
            failed=sorted(results.keys() - read),
            causes=as_json(list({cause_of(error) for error in errors})),
            seconds=time.monotonic() - self._began_s,
            read_bytes=sum(self.plan.stored_bytes(index) for index in read),
            read_s=spent.read_s,
            decode_s=spent.decode_s,
        )
