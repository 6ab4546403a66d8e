"""Keeps the engine's file true while the engine lives: heartbeat, and whether the tier is on.

A thread of its own does the file I/O; a hung disk holds up nothing but the heartbeat.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import Any

from sessiond.connector.attest import TierState
from sessiond.domain.engines import EngineInfo, ServedAdapter
from sessiond.domain.errors import StoreError
from sessiond.domain.fingerprint import Fingerprint
from sessiond.store.store import Store

logger = logging.getLogger("vllm.sessiond.announcer")

_HEARTBEAT_S = 10.0


class Announcer:
    """Publishes an engine; it counts as live until its process ends.

    :raises StoreError: its file cannot be written
    """

    def __init__(self, store: Store, info: EngineInfo) -> None:
        self._info = info
        self._file = store.publish_engine(info)
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sessiond-announce", daemon=True)
        self._thread.start()

    def tier_changed(self, state: TierState) -> None:
        """Tell everybody whether the snapshot tier is off; returns at once."""
        self._change(
            tier_off=state.off,
            tier_off_reason=state.reason,
            attestable=state.attestable,
            resets=state.resets,
        )

    def identified(self, fingerprint: Fingerprint) -> None:
        """Tell everybody the engine's fingerprint; returns at once."""
        self._change(fingerprint=fingerprint)

    def adapters_changed(self, adapters: tuple[ServedAdapter, ...]) -> None:
        """Tell everybody which adapters the engine serves; returns at once."""
        self._change(adapters=adapters)

    def _change(self, **values: Any) -> None:
        with self._lock:  # both are called from threads of their own
            self._info = replace(self._info, **values)
        self._changed.set()

    def _run(self) -> None:
        while True:
            self._changed.wait(_HEARTBEAT_S)
            self._changed.clear()
            try:
                self._file.update(replace(self._info, heartbeat_unix_s=time.time()))
            except (StoreError, OSError) as error:
                logger.warning("sessiond: the engine's file was not updated: %s", error)
