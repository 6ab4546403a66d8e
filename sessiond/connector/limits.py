"""Sizes and deadlines of one engine's data plane."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What the coordinator has to respect; deadlines are in seconds."""

    chunk_tokens: int
    ram_chunks: int
    plan_deadline_s: float  #: from a request's arrival until its KV is promised
    job_deadline_s: float  #: for one read or write job of the mover
    hold_deadline_s: float  #: for requests that wait for a suspend or resume to settle

    def chunk_at(self, end_token: int) -> int:
        """Return the index of the chunk that ends at this token."""
        return end_token // self.chunk_tokens - 1

    def chunks_in(self, tokens: int) -> int:
        """Return how many whole chunks so many tokens are."""
        return tokens // self.chunk_tokens
