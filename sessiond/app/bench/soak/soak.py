"""``sessiond bench soak``: many agents on one engine that holds only some of them, for long.

The agents take turns, hang up, idle, suspend, resume, fork and delete. Meanwhile idle sessions
are swept, and engine and daemon are killed. Afterwards every answer is compared with a model
that never suspends, every session that was promised must be there, and nothing must be left.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from sessiond.app.bench.soak.comparison import compare
from sessiond.app.bench.soak.model import short_model
from sessiond.app.bench.soak.options import SoakOptions
from sessiond.app.bench.soak.reference import scored
from sessiond.app.bench.soak.report import report_of
from sessiond.app.bench.soak.run import Soak
from sessiond.app.bench.soak.servers import Servers
from sessiond.app.bench.soak.torchmodel import TorchModel
from sessiond.app.bench.stage import own_folder
from sessiond.app.trials import Say
from sessiond.testing.stack import Stack


def measure_soak(options: SoakOptions, say: Say) -> dict[str, Any]:
    """Run the soak, and return its report.

    :raises ConfigurationError: the options cannot be used.
    :raises RuntimeError: a server did not start, or an agent failed.
    """
    options.require_possible()
    model = short_model(options.models.absolute())
    with ThreadPoolExecutor(1) as beside:
        # Its import takes as long as an engine's, and one core is idle then.
        loading = beside.submit(TorchModel, model)
        soak = _soaked(options, model, say)
        say(f"comparing {len(soak.ledger.answers)} answers with a model that never suspends")
        verdict = compare(scored(loading.result(), soak.ledger.answers))
    return report_of(soak, verdict, options)


def _soaked(options: SoakOptions, model: Path, say: Say) -> Soak:
    with _folders(options.folder) as (folder, temporary), ExitStack() as exits:
        stack = exits.enter_context(Stack(folder))
        soak = exits.enter_context(closing(Soak(Servers(stack, model, temporary), options, say)))
        soak.start()
        soak.work()
        soak.examine()
        soak.stop()
    return soak


@contextmanager
def _folders(parent: Path) -> Iterator[tuple[Path, Path]]:
    """Yield a folder for the store, and one whose path is short enough for sockets."""
    short = Path(tempfile.gettempdir())
    with own_folder(parent, "soak") as folder, own_folder(short, "soak") as temporary:
        yield folder, temporary
