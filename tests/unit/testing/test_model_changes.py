from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import snapshot_download

from sessiond.testing.model_changes import link_checkpoint, make_hub_cache, replace_file


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights").write_text("w1")
    (folder / "config").write_text("c1")
    return folder


def test_a_changed_copy_leaves_the_original_alone(model: Path, tmp_path: Path) -> None:
    copy = link_checkpoint(model, tmp_path / "copy")
    replace_file(copy / "weights", "w2")

    assert (model / "weights").read_text() == "w1"
    assert (copy / "weights").read_text() == "w2"
    assert link_checkpoint(model, copy).joinpath("weights").read_text() == "w1"


def test_a_made_hub_cache_is_found_offline_by_revision(model: Path, tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    first, second = "a" * 40, "b" * 40

    make_hub_cache(
        hub,
        "someone/model",
        model,
        {
            first: lambda _: None,
            second: lambda files: replace_file(files / "config", "c2"),
        },
    )

    found = {
        revision: Path(
            snapshot_download(
                "someone/model", revision=revision, cache_dir=hub, local_files_only=True
            )
        )
        for revision in (first, second, "main")
    }
    assert found["main"] == found[first]
    assert [(found[r] / "config").read_text() for r in (first, second)] == ["c1", "c2"]
    # Equal files are one blob.
    assert len({(found[r] / "weights").resolve() for r in (first, second)}) == 1
    assert (model / "config").read_text() == "c1"
