"""How long a fake engine says that it takes: nothing really waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.domain.timing import TurnTiming

if TYPE_CHECKING:
    from sessiond.domain.heads import TurnSplit
    from sessiond.domain.snapshot import Manifest


@dataclass
class FakeTimes:
    """Rates and fixed costs; change them to make loading, or computing, pay."""

    lookup_s: float = 0.004
    queue_s: float = 0.0  #: of each load from disk
    waiting_s: float = 0.0
    load_fixed_s: float = 0.002
    load_bytes_s: float = 2e9  #: stored bytes, from disk to VRAM
    ram_token_s: float = 1e-6  #: for each token that comes from RAM
    prefill_fixed_s: float = 0.005
    prefill_token_s: float = 1e-4
    prefill_token_squared_s: float = 0.0  #: for each token, times its position
    others_running: float = 0.0

    def timing(
        self, split: TurnSplit, manifest: Manifest | None, *, computes: bool = True
    ) -> TurnTiming:
        """Return what a request with this split took; its disk tokens are *manifest*'s."""
        read_bytes = _stored_bytes(split, manifest) if manifest else 0
        loads = bool(split.disk_tokens or split.ram_tokens)
        load_s = loads * self.load_fixed_s + read_bytes / self.load_bytes_s
        load_s += split.ram_tokens * self.ram_token_s
        begin, end = split.cached_tokens, split.prompt_tokens
        end = end if computes else begin
        lookup_s = self.lookup_s if manifest else 0.0
        queue_s = self.queue_s if split.disk_tokens else 0.0
        prefill_s = self.prefill_s(begin, end) if computes else 0.0
        return TurnTiming(
            lookup_s=lookup_s,
            queue_s=queue_s,
            load_s=load_s,
            waiting_s=self.waiting_s,
            prefill_s=prefill_s,
            ready_s=lookup_s + queue_s + load_s + self.waiting_s + prefill_s,
            read_s=load_s,
            read_bytes=read_bytes,
            ram_tokens=split.ram_tokens,
            disk_tokens=split.disk_tokens,
            prefill_from_token=begin,
            prefill_to_token=end,
            others_running=self.others_running,
        )

    def loaded_within(self, manifest: Manifest, from_token: int, seconds: float) -> int:
        """Return up to which token the disk's chunks are read by then."""
        reached, left_s = from_token, seconds
        for chunk in manifest.chunks:
            if chunk.end_token > from_token:
                left_s -= chunk.stored_bytes / self.load_bytes_s
                if left_s < 0.0:
                    break
                reached = chunk.end_token
        return reached

    def prefill_s(self, begin: int, end: int) -> float:
        """Return what it takes to compute these tokens."""
        squares = (end * end - begin * begin) / 2
        linear_s = (end - begin) * self.prefill_token_s
        return self.prefill_fixed_s + linear_s + squares * self.prefill_token_squared_s


def _stored_bytes(split: TurnSplit, manifest: Manifest) -> int:
    begin = split.vram_tokens + split.ram_tokens
    return sum(
        chunk.stored_bytes
        for chunk in manifest.chunks
        if begin < chunk.end_token <= begin + split.disk_tokens
    )
