"""The stage: the demo's folder, and what the story does to it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from sessiond.testing.files import flip_byte
from sessiond.testing.model import MODEL_NAME, build_model, change_weights
from sessiond.testing.stack import Stack

_WEIGHTS = "model.safetensors"
#: Behind the segment's header, inside the frame of its first chunk.
_OFFSET_IN_FIRST_CHUNK = 4096 + 1000


class Stage(Stack):
    """A stack over the demo's folder.

    :param models: where the built checkpoint is kept
    """

    def __init__(self, folder: Path, models: Path) -> None:
        super().__init__(folder)
        self._models = models

    @property
    def model(self) -> Path:
        """The checkpoint that is served; its weights change during the story."""
        return self.folder / "model"

    @property
    def report(self) -> Path:
        """The report."""
        return self.folder / "report.json"

    def prepare(self) -> None:
        """Begin with an empty folder and a fresh copy of the checkpoint."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        shutil.copytree(build_model(self._models), self.model)

    @contextlib.contextmanager
    def other_weights(self) -> Iterator[None]:
        """Have other weights under the same path, and put the old ones back afterwards."""
        change_weights(self.model)
        try:
            yield
        finally:
            restored = self.model / f"{_WEIGHTS}.restored"
            shutil.copyfile(self._models / MODEL_NAME / _WEIGHTS, restored)
            restored.replace(self.model / _WEIGHTS)

    def flip_one_byte(self) -> None:
        """Flip one byte of the first chunk in the newest segment."""
        segments = self.store_root.glob("segments/*/*.seg")
        newest = max(segments, key=lambda path: path.stat().st_mtime_ns)
        flip_byte(newest, _OFFSET_IN_FIRST_CHUNK)
