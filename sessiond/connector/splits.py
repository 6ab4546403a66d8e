"""Where the tokens of a prompt came from."""

from __future__ import annotations

from dataclasses import replace

from sessiond.connector.limits import Limits
from sessiond.connector.requests import TicketedRequest
from sessiond.domain.heads import TurnSplit


def split_of(request: TicketedRequest, external_tokens: int, limits: Limits) -> TurnSplit:
    """Return the split of a request that gets *external_tokens* from RAM and disk."""
    disk_tokens = _disk_tokens(request, external_tokens, limits)
    return TurnSplit(
        prompt_tokens=request.prompt_tokens,
        vram_tokens=request.vram_tokens,
        ram_tokens=external_tokens - disk_tokens,
        disk_tokens=disk_tokens,
    )


def confirmed(split: TurnSplit, counted_tokens: int) -> TurnSplit:
    """Return a split of which no more than the first *counted_tokens* count as not computed."""
    vram = min(split.vram_tokens, counted_tokens)
    ram = min(split.ram_tokens, counted_tokens - vram)
    disk = min(split.disk_tokens, counted_tokens - vram - ram)
    return replace(split, vram_tokens=vram, ram_tokens=ram, disk_tokens=disk)


def _disk_tokens(request: TicketedRequest, external_tokens: int, limits: Limits) -> int:
    """Return how many of the tokens beyond VRAM's came from disk.

    VRAM may end inside a chunk: its blocks are smaller than chunks on most platforms.
    """
    size = limits.chunk_tokens
    begin, end = request.vram_tokens, request.vram_tokens + external_tokens
    loaded = request.load.from_disk if request.load else frozenset[int]()
    chunks = {limits.groups.position(number) for number in loaded}
    return sum(max(0, min((chunk + 1) * size, end) - max(chunk * size, begin)) for chunk in chunks)
