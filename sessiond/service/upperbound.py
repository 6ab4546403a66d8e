"""What the store takes at most, without a look at it: the last look, and what came since.

A look costs more the more sessions there are. Far from its quotas, a suspend does without.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sessiond.domain.retention import Load
    from sessiond.service.limits import Limits


class UpperBound:
    """One caller at a time. Small files that are not suspends' wait for the next look."""

    def __init__(self) -> None:
        self._load: Load | None = None
        self._since: Counter[str] = Counter()

    def looked(self, load: Load, coming: Mapping[str, int]) -> None:
        """Take note of a look, and of what suspends that were running then may still write."""
        self._load, self._since = load, Counter(coming)

    def add(self, tenant_name: str, size_bytes: int) -> None:
        """Take note of bytes that a suspend may write."""
        self._since[tenant_name] += size_bytes

    def is_within(self, limits: Limits, tenant_name: str) -> bool:
        """Whether it is certain that the quotas of this tenant and of all are kept."""
        if self._load is None:
            return False
        tenant_bytes = self._load.by_tenant.get(tenant_name, 0) + self._since[tenant_name]
        total_bytes = self._load.total_bytes + self._since.total()
        return all(
            not quota or size_bytes <= quota
            for size_bytes, quota in (
                (tenant_bytes, limits.quota_tenant_bytes),
                (total_bytes, limits.quota_total_bytes),
            )
        )
