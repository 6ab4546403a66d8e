"""Keeps the engine's file true while the engine lives: heartbeat, and whether the tier is on.

A thread of its own does the file I/O; a hung disk holds up nothing but the heartbeat.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace

from sessiond.domain.engines import EngineInfo
from sessiond.domain.errors import StoreError
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
        self._changed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sessiond-announce", daemon=True)
        self._thread.start()

    def tier_off(self, why: str) -> None:
        """Tell everybody that the snapshot tier is off; returns at once."""
        self._info = replace(self._info, tier_off=why)
        self._changed.set()

    def _run(self) -> None:
        while True:
            self._changed.wait(_HEARTBEAT_S)
            self._changed.clear()
            try:
                self._file.update(replace(self._info, heartbeat_unix_s=time.time()))
            except (StoreError, OSError) as error:
                logger.warning("sessiond: the engine's file was not updated: %s", error)
