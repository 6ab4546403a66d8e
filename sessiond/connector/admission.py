"""Admission: how much of the RAM tier each load may hold.

vLLM protects only one key at a time while chunks are promoted, so several loads that do not fit
together evict each other's chunks for ever. A load is admitted when its chunks fit beside those
of the loads admitted before it; the others wait in the order in which they came.
"""

from __future__ import annotations

from collections import OrderedDict


class Admission:
    """A counter of reserved chunks with a first-come queue.

    :param capacity_chunks: slots of the RAM tier
    """

    def __init__(self, capacity_chunks: int) -> None:
        self.capacity_chunks = capacity_chunks
        self._reserved: dict[str, int] = {}
        self._waiting: OrderedDict[str, None] = OrderedDict()

    @property
    def reserved_chunks(self) -> int:
        """Slots that admitted loads may hold."""
        return sum(self._reserved.values())

    def try_admit(self, request_id: str, chunks: int) -> int | None:
        """Reserve up to *chunks* slots, at most all there are.

        :return: the slots reserved, or ``None`` if the request has to wait
        """
        if request_id in self._reserved:
            return self._reserved[request_id]
        self._waiting[request_id] = None
        granted = min(chunks, self.capacity_chunks)
        first = next(iter(self._waiting))
        fits = self.reserved_chunks + granted <= self.capacity_chunks
        if granted and (first != request_id or not fits):
            return None
        del self._waiting[request_id]
        self._reserved[request_id] = granted
        return granted

    def release(self, request_id: str) -> bool:
        """Give the request's slots, or its place in the queue, back; return if it had slots."""
        self._waiting.pop(request_id, None)
        return self._reserved.pop(request_id, None) is not None
