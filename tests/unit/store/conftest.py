from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from sessiond.store.store import Store
from sessiond.testing.snapshots import a_key_ring

if TYPE_CHECKING:
    from pathlib import Path

    from sessiond.domain.keys import KeyRing

# No deadline: the first use of a kernel compiles it, and a disk may be slow for a moment.
settings.register_profile(
    "store", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("store")


@pytest.fixture
def keys() -> KeyRing:
    return a_key_ring()


@pytest.fixture
def store(tmp_path: Path, keys: KeyRing) -> Store:
    return Store.open(tmp_path / "root", keys)
