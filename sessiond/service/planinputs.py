"""What a plan for a session is made from, as far as its files tell: pure rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sessiond.domain.plans import Span
from sessiond.domain.samples import Tier
from sessiond.domain.tokens import common_prefix_tokens, whole_chunk_tokens

if TYPE_CHECKING:
    from sessiond.domain.snapshot import Manifest
    from sessiond.service.resume import Prospect

#: With sliding windows a snapshot restores a few contexts; more are not looked for.
_MOST_STOPS: Final = 8


def resident_tokens(prospect: Prospect) -> int:
    """Return how much of the target the engine is believed to have in VRAM or RAM."""
    located, manifest = prospect.sight.located, prospect.manifest
    if manifest is None or located is None or prospect.hindrances:
        return 0
    if located.engine.engine_id != prospect.engine.engine_id:
        return 0
    same = (
        branch.tokens[: branch.kv_tokens]
        for branch in located.head.branches
        if branch.adapter_digest == prospect.adapter_digest
    )
    common = max((common_prefix_tokens(tokens, manifest.tokens) for tokens in same), default=0)
    return min(whole_chunk_tokens(common, manifest.chunk_tokens), prospect.target_tokens)


def room_tokens(prospect: Prospect) -> int | None:
    """Return how many tokens of the target the RAM tier can take at once; ``None``: all."""
    manifest, chunks = prospect.manifest, prospect.engine.ram_tier_chunks
    if manifest is None or manifest.groups.windowed or prospect.target_chunks <= chunks:
        return None
    return chunks // manifest.groups.count * manifest.chunk_tokens


def spans_of(manifest: Manifest, target_tokens: int, resident: int) -> tuple[Span, ...]:
    """Return where the target's tokens are: in the engine up to *resident*, then on disk."""
    spans = [Span(Tier.VRAM, resident, 0)] if resident else []
    if resident < target_tokens:
        size = stored_bytes(manifest, resident, target_tokens)
        spans.append(Span(Tier.NVME, target_tokens, size))
    return tuple(spans)


def stored_bytes(manifest: Manifest, begin_token: int, end_token: int) -> int:
    """Return the bytes on disk that a load of these tokens reads."""
    groups, step = manifest.groups, manifest.chunk_tokens
    needed = set(groups.needed(end_token // step, begin_token // step)) if groups.windowed else None
    return sum(
        chunk.stored_bytes
        for chunk in manifest.chunks
        if begin_token < chunk.end_token <= end_token
        and (needed is None or manifest.number(chunk, groups) in needed)
    )


def stops_of(manifest: Manifest, target_tokens: int) -> tuple[int, ...]:
    """Return the prefixes that can be loaded; empty: every whole chunk."""
    if not manifest.groups.windowed:
        return ()
    stops = [target_tokens]
    while len(stops) < _MOST_STOPS:
        shorter = manifest.restorable_up_to(stops[-1] - manifest.chunk_tokens)
        if shorter <= 0:
            break
        stops.append(shorter)
    return tuple(reversed(stops))
