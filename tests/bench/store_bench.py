"""How fast the store moves KV, beside the device itself, on the same bytes in the same run.

Run it on an idle machine, on the file system that the store will use::

    python tests/bench/store_bench.py --root /data/bench --size-mib 2048 --json

Every round measures each contestant once, one after the other, so that what slows the machine
for a while slows all of them. Reported are medians over the rounds, their spread, and ratios of
medians. The destinations of a restore are slots of one shared region in random order, as they
are in life. All I/O passes the page cache by; where it cannot, the report says so.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import secrets
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sessiond.domain.ids import SegmentId, TenantId
from sessiond.domain.keys import KeyRing
from sessiond.store import planes
from sessiond.store.buffers import Scratch
from sessiond.store.checksums import ChunkPosition
from sessiond.store.codecs import Codec, choose_codec, try_codecs
from sessiond.store.segments import WantedChunk
from sessiond.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sessiond.domain.snapshot import ChunkRecord

BLOCK_BYTES = 4 << 20
DIGEST = bytes(32)
TENANT = TenantId("bench")


@dataclass(frozen=True)
class Setup:
    """What one run works on."""

    store: Store
    chunks: list[npt.NDArray[np.uint8]]
    region: npt.NDArray[np.uint8]  #: one slot per chunk
    slots: list[int]  #: chunk to slot
    pool: ThreadPoolExecutor  #: lives as long as a mover's threads, and keeps their memory
    block: npt.NDArray[np.uint8]  #: what the device is measured with, in huge pages

    @property
    def raw_bytes(self) -> int:
        """Bytes of all chunks."""
        return sum(map(len, self.chunks))


def main() -> int:
    """Measure, and print."""
    options = parse_options()
    root = Path(tempfile.mkdtemp(prefix="store-bench-", dir=options.root))
    try:
        report = measure(root, options)
    finally:
        shutil.rmtree(root)
    print_report(report, as_json=options.json)
    return 0


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="where to write")
    parser.add_argument("--size-mib", type=int, default=1024, help="raw KV bytes per round")
    parser.add_argument("--chunk-bytes", type=int, default=2_949_120)
    parser.add_argument("--data", type=Path, help="file with real KV bytes (default: synthetic)")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def measure(root: Path, options: argparse.Namespace) -> dict[str, object]:
    """Return the whole report."""
    with ThreadPoolExecutor(options.threads) as pool:
        return measure_with(make_setup(root, options, pool), root, options)


def measure_with(setup: Setup, root: Path, options: argparse.Namespace) -> dict[str, object]:
    """Return the whole report of one setup."""
    sample = setup.chunks[0].data
    try_codecs(sample)  # compiles the kernels
    rates: dict[str, list[float]] = defaultdict(list)
    stored: dict[str, float] = {}
    for _ in range(options.rounds):
        one_round(setup, root / "device", rates, stored)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    spread = {name: [min(values), max(values)] for name, values in rates.items()}
    return {
        "raw_bytes": setup.raw_bytes,
        "chunk_bytes": options.chunk_bytes,
        "data": "real" if options.data else "synthetic",
        "threads": options.threads,
        "rounds": options.rounds,
        "kernels": planes.kernels().name,
        "bytes_s": {"median": medians, "min_max": spread},
        "ratios": ratios(medians, stored),
        "trials": {trial.codec.name: vars(trial) for trial in try_codecs(sample)},
        "chosen": choose_codec(sample, read_bytes_s=medians["device_read"]).name,
    }


def make_setup(root: Path, options: argparse.Namespace, pool: ThreadPoolExecutor) -> Setup:
    """Lay out the chunks and a region of scattered slots."""
    count = max(1, (options.size_mib << 20) // options.chunk_bytes)
    store = Store.open(root / "store", KeyRing.from_server_key(secrets.token_bytes(32)))
    chunks = make_chunks(count, options.chunk_bytes, options.data)
    slot_bytes = -(-options.chunk_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    region = np.frombuffer(mmap.mmap(-1, count * slot_bytes), np.uint8)
    slots = [int(slot) for slot in np.random.default_rng(1).permutation(count)]
    for slot in slots:  # touched in random order: its pages lie scattered
        region[slot * slot_bytes : (slot + 1) * slot_bytes : mmap.PAGESIZE] = 1
    block = Scratch().get(BLOCK_BYTES)
    block[:] = np.random.default_rng(2).integers(0, 256, BLOCK_BYTES, np.uint8)
    return Setup(store, chunks, region, slots, pool, block)


def make_chunks(count: int, chunk_bytes: int, data: Path | None) -> list[npt.NDArray[np.uint8]]:
    """Return real bytes, repeated as needed, or bf16 values as compressible as real KV."""
    if data is not None:
        whole = np.fromfile(data, np.uint8)
        return [
            np.resize(np.roll(whole, -index * chunk_bytes), chunk_bytes) for index in range(count)
        ]
    generator = np.random.default_rng(0)
    scales = np.exp(generator.normal(0, 1, 64)).astype(np.float32)
    shape = (-(-chunk_bytes // 2 // 64), 64)
    values = generator.standard_normal((2, *shape), dtype=np.float32) * scales
    kinds = [
        (kind.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).ravel() for kind in values
    ]
    return [np.roll(kinds[index % 2], 2 * index)[:chunk_bytes].copy() for index in range(count)]


def one_round(
    setup: Setup, device_file: Path, rates: dict[str, list[float]], stored: dict[str, float]
) -> None:
    """Measure everything once."""

    def note(name: str, amount: int, action: Callable[[], object]) -> None:
        started = time.perf_counter()
        action()
        rates[name].append(amount / (time.perf_counter() - started))

    note("device_write", setup.raw_bytes, partial(device_write, setup, device_file))
    note("device_read", setup.raw_bytes, partial(device_read, setup, device_file))
    device_file.unlink()
    for name, codec in (("raw", Codec.RAW), ("compressed", Codec.PLANAR_ZSTD)):
        records: list[ChunkRecord] = []
        note(f"suspend_{name}", setup.raw_bytes, partial(suspend, setup, codec, records))
        note(f"restore_{name}", setup.raw_bytes, partial(restore, setup, records))
        check(setup)
        stored[name] = sum(record.stored_bytes for record in records) / setup.raw_bytes
        setup.store.collect()


def device_write(setup: Setup, path: Path) -> None:
    """Write as many bytes as the chunks have sequentially from huge pages, and sync."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o600)
    try:
        for offset in range(0, setup.raw_bytes, BLOCK_BYTES):
            os.pwrite(fd, setup.block.data, offset)
        os.fsync(fd)
    finally:
        os.close(fd)


def device_read(setup: Setup, path: Path) -> None:
    """Read that file sequentially into huge pages."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        offset = 0
        while got := os.preadv(fd, [setup.block.data], offset):
            offset += got
    finally:
        os.close(fd)


def position(index: int) -> ChunkPosition:
    """Return the position of the chunk with this index."""
    return ChunkPosition(0, index * 128, (index + 1) * 128, index.to_bytes(32, "little"))


def suspend(setup: Setup, codec: Codec, records: list[ChunkRecord]) -> None:
    """Encode, write and sync all chunks as one segment."""
    with setup.store.new_segment(TENANT, DIGEST) as writer:

        def append(index: int) -> ChunkRecord:
            return writer.append(position(index), setup.chunks[index].data, codec)

        records.extend(setup.pool.map(append, range(len(setup.chunks))))
        writer.finish()


def restore(setup: Setup, records: Sequence[ChunkRecord]) -> None:
    """Read, verify and decode all chunks into their slots."""
    chunk_bytes = records[0].raw_bytes
    slot_bytes = len(setup.region) // len(setup.slots)
    region = setup.region.data
    wanted = [
        WantedChunk(record, position(index).chain_digest, region[start : start + chunk_bytes])
        for index, record in enumerate(records)
        if (start := setup.slots[index] * slot_bytes) >= 0
    ]
    step = 8  # a job of the mover is about this size
    jobs = [wanted[start : start + step] for start in range(0, len(wanted), step)]
    with setup.store.open_segment(SegmentId(records[0].segment_id)) as reader:
        for results in setup.pool.map(lambda job: reader.load(job, DIGEST), jobs):
            if any(results):
                raise SystemExit(f"A chunk was not restored: {results}")


def check(setup: Setup) -> None:
    """A fast restore of wrong bytes counts for nothing."""
    slot_bytes = len(setup.region) // len(setup.slots)
    for index, chunk in enumerate(setup.chunks):
        start = setup.slots[index] * slot_bytes
        if not np.array_equal(setup.region[start : start + len(chunk)], chunk):
            raise SystemExit("The restored bytes differ.")
    setup.region[:] = 0


def ratios(medians: dict[str, float], stored: dict[str, float]) -> dict[str, float]:
    """Return the figures that design §10 asks for."""
    read, write = medians["device_read"], medians["device_write"]
    return {
        "restore_raw_vs_device_read": medians["restore_raw"] / read,
        "restore_compressed_vs_device_read": medians["restore_compressed"] / read,
        "suspend_raw_vs_device_write": medians["suspend_raw"] / write,
        "suspend_compressed_vs_device_write": medians["suspend_compressed"] / write,
        "stored_vs_raw": stored["compressed"],
    }


def print_report(report: dict[str, object], *, as_json: bool) -> None:
    """Print for a program, or for a person."""
    if as_json:
        json.dump(report, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return
    bytes_s = report["bytes_s"]
    assert isinstance(bytes_s, dict)
    for name, median in bytes_s["median"].items():
        low, high = bytes_s["min_max"][name]
        sys.stdout.write(
            f"{name:20} {median / 1e9:6.2f} GB/s  ({low / 1e9:.2f} to {high / 1e9:.2f})\n"
        )
    shares = report["ratios"]
    assert isinstance(shares, dict)
    for name, share in shares.items():
        sys.stdout.write(f"{name:36} {share:6.3f}\n")


if __name__ == "__main__":
    sys.exit(main())
