"""KV groups: layers that keep KV for different parts of a context.

A group of full attention needs the KV of all tokens, one with a sliding window only that of the
newest ones. Each group has chunks of its own, all of the same number of tokens. The chunk of
group *g* at position *p* (tokens ``p * chunk_tokens`` and on) has the number ``p * groups + g``:
with one group, numbers are positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sessiond.domain.fingerprint import Fingerprint

#: No engine has more; what tells of more is damaged.
MAX_GROUPS = 1024


@dataclass(frozen=True)
class KvGroups:
    """The groups of one engine.

    :param windows_chunks: for each group, how many chunks its window touches at most where it
        ends with a chunk; 0 for full attention
    """

    windows_chunks: tuple[int, ...] = (0,)

    @property
    def count(self) -> int:
        """How many groups there are."""
        return len(self.windows_chunks)

    @property
    def windowed(self) -> bool:
        """Whether some group forgets old tokens."""
        return any(self.windows_chunks)

    def number(self, group: int, position: int) -> int:
        """Return a chunk's number."""
        return position * self.count + group

    def group(self, number: int) -> int:
        """Return the group of a chunk."""
        return number % self.count

    def position(self, number: int) -> int:
        """Return the position of a chunk."""
        return number // self.count

    def keeps_all(self, group: int) -> bool:
        """Whether *group* has full attention."""
        return not self.windows_chunks[group]

    def first_needed(self, group: int, end: int) -> int:
        """Return the first position that *group* needs for a context that ends before *end*."""
        window = self.windows_chunks[group]
        return max(0, end - window) if window else 0

    def all_before(self, end: int) -> range:
        """Return the chunks of all groups before position *end*."""
        return range(end * self.count)

    def needed(self, end: int, begin: int = 0) -> list[int]:
        """Return the chunks that a context needs that ends before position *end*, in order.

        :param begin: positions before it are there already
        """
        return sorted(
            self.number(group, position)
            for group in range(self.count)
            for position in range(max(begin, self.first_needed(group, end)), end)
        )

    def reach(self, numbers: Iterable[int], limit: int) -> int:
        """Return the longest context, in chunks, that these chunks restore; at most *limit*.

        With a window, that is not every shorter one: its older chunks are not kept.
        """
        places: list[set[int]] = [set() for _ in self.windows_chunks]
        for number in numbers:
            places[self.group(number)].add(self.position(number))
        reached = 0
        runs = [0] * self.count  # how many chunks without a gap end here
        for end in range(1, limit + 1):
            for group, there in enumerate(places):
                runs[group] = runs[group] + 1 if end - 1 in there else 0
            if any(self._is_broken(group, runs[group], end) for group in range(self.count)):
                break
            if all(run >= end - self.first_needed(group, end) for group, run in enumerate(runs)):
                reached = end
        return reached

    def _is_broken(self, group: int, run: int, end: int) -> bool:
        """Whether no longer context can be restored: full attention has a gap."""
        return self.keeps_all(group) and run < end


def groups_of(fingerprint: Fingerprint, chunk_tokens: int, at_least: int = 1) -> KvGroups:
    """Return the groups that a fingerprint tells of; what it does not describe is full attention.

    :param at_least: how many groups there are, as far as is known
    """
    described = fingerprint.fields.get("kv_groups")
    groups = described if isinstance(described, list) else []
    windows = [_window_chunks(group, chunk_tokens) for group in groups]
    return KvGroups((*windows, *[0] * (max(1, at_least) - len(windows))))


def _window_chunks(group: object, chunk_tokens: int) -> int:
    tokens = group.get("window_tokens", 0) if isinstance(group, Mapping) else 0
    return max(0, -(-tokens // chunk_tokens)) if isinstance(tokens, int) else 0
