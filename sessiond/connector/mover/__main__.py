"""``python -m sessiond.connector.mover SOCKET_FD REGION_FD``: started by the engine only."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

from sessiond.connector.mover import protocol
from sessiond.connector.mover.region import map_region, touch_in_background
from sessiond.connector.mover.server import Mover

logger = logging.getLogger(__name__)

# Above the engine's own score: when memory is short, the mover is the one to lose.
_OOM_SCORE_ABOVE_ENGINE = 500
_OOM_SCORE_MAX = 1000


def main() -> NoReturn:
    """Serve until the engine's end of the socket closes; then end at once."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s sessiond mover: %(message)s")
    try:
        _serve()
    except Exception:
        logger.exception("the mover ends")
        os._exit(70)
    # Whatever is half done belongs to an engine that is gone: nothing of it may be committed.
    os._exit(0)


def _serve() -> None:
    # Ctrl-C and service managers signal the whole group; the mover ends with its engine instead.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _stand_aside()
    sock = socket.socket(fileno=int(sys.argv[1]))
    hello = protocol.receive(sock)
    if not isinstance(hello, protocol.Hello):
        return
    region = map_region(int(sys.argv[2]), hello.region_chunks * hello.chunk_bytes)
    touch_in_background(region)
    mover = Mover(hello, memoryview(region), lambda message: protocol.send(sock, message))
    protocol.send(sock, protocol.Ready())
    while (message := protocol.receive(sock)) is not None:
        mover.handle(message)


def _stand_aside() -> None:
    # vLLM binds its threads to cores; the mover inherits that and must not.
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    score = Path("/proc/self/oom_score_adj")
    # Never lowered, which would need a privilege: containers often begin with 1000.
    score.write_text(str(min(_OOM_SCORE_MAX, int(score.read_text()) + _OOM_SCORE_ABOVE_ENGINE)))


if __name__ == "__main__":
    main()
