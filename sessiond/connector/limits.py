"""Sizes and deadlines of one engine's data plane."""

from __future__ import annotations

from dataclasses import dataclass, field

from sessiond.domain.kvgroups import KvGroups


@dataclass(frozen=True)
class Limits:
    """What the coordinator has to respect; deadlines are in seconds."""

    chunk_tokens: int
    ram_chunks: int
    plan_deadline_s: float  #: from a request's arrival until its KV is promised
    job_deadline_s: float  #: for one read or write job of the mover
    hold_deadline_s: float  #: for requests that wait for a suspend or resume to settle
    groups: KvGroups = field(default_factory=KvGroups)

    def chunk_at(self, end_token: int, group: int = 0) -> int:
        """Return the number of the chunk of *group* that ends at this token."""
        return self.groups.number(group, end_token // self.chunk_tokens - 1)

    def chunks_in(self, tokens: int) -> int:
        """Return how many whole chunks of one group so many tokens are."""
        return tokens // self.chunk_tokens

    def chunks_of(self, tokens: int) -> range:
        """Return the numbers of all groups' whole chunks of a context of so many tokens."""
        return self.groups.all_before(self.chunks_in(tokens))
