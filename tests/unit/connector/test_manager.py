"""vLLM's own tiering manager, as we extend it, with a RAM tier that is full."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from vllm.v1.kv_offload.base import ReqContext, make_offload_key
from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager

from sessiond.connector.manager import SessionOffloadingManager
from sessiond.connector.tier import SnapshotTier
from sessiond.domain.kvgroups import KvGroups
from sessiond.testing.fake_mover import FakeClock, FakeMovers
from sessiond.testing.fake_scheduler import LIMITS, FakeScheduler

SLOTS = 2


class Region:
    """The RAM tier's memory, as vLLM's manager asks for it."""

    def create_kv_memoryview(self) -> memoryview:
        return memoryview(bytearray(SLOTS)).cast("B", (SLOTS, 1))


def manager(clock: FakeClock, groups: KvGroups | None) -> SessionOffloadingManager:
    """Return a manager of an engine with these groups; ``None``: nothing is attached yet."""
    region: Any = Region()  # all that vLLM needs of its own
    tier = SnapshotTier(None, region.create_kv_memoryview(), "SnapshotTier")
    if groups is not None:
        limits = replace(LIMITS, groups=groups)
        tier.attach(FakeScheduler(clock, FakeMovers(), limits=limits).coordinator)
    return SessionOffloadingManager(CPUPrimaryTierOffloadingManager(SLOTS, region), [tier])


@pytest.mark.parametrize(
    ("groups", "tries_again"), [(KvGroups((0,)), True), (KvGroups((0, 2)), False), (None, False)]
)
def test_with_windows_a_store_without_room_is_not_tried_again(
    clock: FakeClock,
    groups: KvGroups | None,
    tries_again: bool,  # noqa: FBT001 - of a table
) -> None:
    vllm, request = manager(clock, groups), ReqContext("r")
    vllm.on_new_request(request)
    keys = [make_offload_key(b"%032d" % number, 0) for number in range(SLOTS + 1)]
    output = vllm.prepare_store(keys, request)
    assert (output is None) == tries_again
    assert output is None or list(output.keys_to_store) == []
