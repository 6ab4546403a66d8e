"""Loading chunks of one segment: read, decode into place, verify; what is not proven is wiped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from sessiond.domain.errors import StoreCorruptError, StoreError, StoreLateError
from sessiond.domain.snapshot import ChunkRecord
from sessiond.store.buffers import Scratch
from sessiond.store.checksums import ChunkPosition, chunk_checksum
from sessiond.store.codecs import Codec, thread_coder
from sessiond.store.fileio import FileOps, store_error
from sessiond.store.format import align_up
from sessiond.store.readahead import ReadRun, read_runs
from sessiond.store.reading import Frame, ReadPace, Run, plan_runs, read_blocks

if TYPE_CHECKING:
    from sessiond.store.format import SegmentHeader


_LATE: Final = StoreLateError()


@dataclass(frozen=True)
class WantedChunk:
    """One chunk to load."""

    record: ChunkRecord
    chain_digest: bytes  #: of the tokens that the caller wants the chunk for
    out: memoryview  #: writable, contiguous, ``record.raw_bytes`` long


@dataclass(frozen=True)
class OpenFile:
    """The segment that is read."""

    ops: FileOps
    fd: int
    header: SegmentHeader
    on_bad: Callable[[int, str], None]  #: is told the offset of each damaged chunk, and why


@dataclass(frozen=True)
class LoadSpent:
    """What threads spent on a load, added up."""

    read_s: float = 0.0  #: waiting for the device
    decode_s: float = 0.0  #: decoding, verifying, copying; and reading a damaged frame again

    @classmethod
    def sum(cls, parts: Iterable[LoadSpent]) -> LoadSpent:
        """Return all parts as one."""
        every = list(parts)
        return cls(sum(one.read_s for one in every), sum(one.decode_s for one in every))


class SegmentLoad:
    """A load that several threads may :meth:`work` on at once.

    They take one run of frames after the other, so the file is read in its order, however many
    they are: with a stream for each of them the device is slower.

    :param results: why a chunk is not loaded, or ``None``; completed by the work
    :ivar spent: what each thread spent; completed by the work
    """

    def __init__(
        self,
        file: OpenFile,
        wanted: Sequence[WantedChunk],
        results: list[StoreError | None],
        pace: ReadPace,
    ) -> None:
        self._file = file
        self._wanted = wanted
        # Reading ahead pays only where there is much work to overlap reads with.
        self._ahead = pace.ahead and any(one.record.codec != Codec.RAW for one in wanted)
        self.results = results
        self.spent: list[LoadSpent] = []
        frames = [
            Frame(place, chunk.record.offset_bytes, chunk.record.stored_bytes)
            for place, chunk in enumerate(wanted)
            if results[place] is None
        ]
        # What is never begun must not pass for loaded.
        for frame in frames:
            results[frame.place] = _LATE
        self._runs: Iterator[Run] = _Runs(plan_runs(frames, pace.run_bytes), pace.until_s)

    def work(self, on_run: Callable[[], None] | None = None) -> None:
        """Load until nothing is left that another thread does not work on.

        :param on_run: called after each run of frames
        """
        reading = read_runs(self._file.ops, self._file.fd, self._runs, ahead=self._ahead)
        read_s = decode_s = 0.0
        asked_s = perf_counter()
        with contextlib.closing(reading) as read:
            for one in read:
                came_s = perf_counter()
                read_s += came_s - asked_s
                self._load_run(one)
                asked_s = perf_counter()
                decode_s += asked_s - came_s
                if on_run is not None:
                    on_run()
        self.spent.append(LoadSpent(read_s, decode_s))

    def _load_run(self, read: ReadRun) -> None:
        again = []
        for frame in read.run.frames:
            if isinstance(read.data, Exception):  # one bad block must not cost its neighbours
                again.append(frame)
                continue
            start = frame.offset_bytes - read.run.offset_bytes
            try:
                self._deliver(frame, read.data[start : start + frame.stored_bytes])
            except StoreCorruptError:
                again.append(frame)
        # Last, because it needs the run's memory.
        for frame in again:
            self.results[frame.place] = self._load_again(frame, read.buffer)

    def _load_again(self, frame: Frame, buffer: Scratch) -> StoreError | None:
        file = self._file
        try:
            size_bytes = align_up(frame.stored_bytes)
            data = read_blocks(file.ops, file.fd, buffer, frame.offset_bytes, size_bytes)
            self._deliver(frame, data[: frame.stored_bytes])
        except OSError as error:
            return store_error("Reading a chunk", error)
        except StoreCorruptError as error:
            file.on_bad(frame.offset_bytes, error.message)
            return error
        return None

    def _deliver(self, frame: Frame, payload: npt.NDArray[np.uint8]) -> None:
        """Decode, write and verify; what is not proven is wiped."""
        chunk = self._wanted[frame.place]
        record = chunk.record
        decoded = thread_coder().decode(record.codec, payload, record.raw_bytes)
        position = ChunkPosition(
            record.group, record.start_token, record.end_token, chunk.chain_digest
        )
        out = np.frombuffer(chunk.out, np.uint8)
        # Nobody looks at the destination before the result says that it may be used. Checked
        # where it was written, the bytes pass through memory once.
        found = chunk_checksum(position, self._file.header.bytes_digest, decoded.written_to(out))
        if found != record.checksum:
            out[:] = 0
            raise StoreCorruptError("A chunk's checksum is wrong.")
        self.results[frame.place] = None


class _Runs:
    """The runs that are begun in time; unlike a generator, threads may share it."""

    def __init__(self, runs: Iterable[Run], until_s: float) -> None:
        self._runs, self._until_s = iter(runs), until_s

    def __iter__(self) -> Iterator[Run]:
        return self

    def __next__(self) -> Run:
        if monotonic() >= self._until_s:
            raise StopIteration
        return next(self._runs)
