"""Ends an engine core whose frontend was killed.

vLLM's workers notice that their engine core is gone, but the core does not notice that the
process is gone which started it: it would go on alone for ever, with all its memory, and nobody
could reach it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from dataclasses import dataclass

logger = logging.getLogger("vllm.sessiond.orphans")


@dataclass(frozen=True)
class Patience:
    """How long an orphan may go on."""

    look_s: float = 1.0  #: between two looks
    end_s: float = 3.0  #: to end by itself, as it does when its frontend ends in good order
    term_s: float = 10.0  #: to end on SIGTERM


def end_with_frontend(patience: Patience = Patience()) -> None:
    """Let this process end soon after the one that started it.

    One that vLLM did not start as a process of its own is nobody's child: nothing happens.
    """
    frontend = multiprocessing.parent_process()
    if frontend is None or frontend.pid is None:
        return
    threading.Thread(
        target=_watch, args=(frontend.pid, patience), name="sessiond-orphan", daemon=True
    ).start()


def _watch(frontend: int, patience: Patience) -> None:
    # Not by a signal of the system's: that comes when the thread ends which started us.
    while os.getppid() == frontend:
        time.sleep(patience.look_s)
    time.sleep(patience.end_s)
    logger.error("sessiond: process %d, which started this engine, is gone: it ends", frontend)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(patience.term_s)
    os.kill(os.getpid(), signal.SIGKILL)
