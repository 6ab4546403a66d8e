from __future__ import annotations

import os
from pathlib import Path

import pytest
from blake3 import blake3

from sessiond.connector.digests import DigestCache, tokenizer_files, weight_files
from sessiond.domain.errors import UnsupportedEngineError


@pytest.fixture
def cache(tmp_path: Path) -> DigestCache:
    return DigestCache(tmp_path / "cache" / "digests.json")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("a.safetensors", "b.safetensors", "config.json"):
        (folder / name).write_text(name)
    return folder


def test_a_digest_is_blake3_of_the_content(cache: DigestCache, model: Path) -> None:
    digest = cache.file_digest(model / "a.safetensors")
    assert digest == blake3(b"a.safetensors").hexdigest()


def test_an_empty_file_has_a_digest(cache: DigestCache, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert cache.file_digest(tmp_path / "empty") == blake3(b"").hexdigest()


def test_a_changed_file_of_the_same_size_and_time_is_noticed(
    cache: DigestCache, model: Path
) -> None:
    path = model / "a.safetensors"
    before = cache.file_digest(path)
    stat = path.stat()
    path.write_text("A.safetensors")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # a change time cannot be set
    assert path.stat().st_mtime_ns == stat.st_mtime_ns
    assert cache.file_digest(path) != before


def test_another_file_in_its_place_is_noticed(cache: DigestCache, model: Path) -> None:
    path, other = model / "a.safetensors", model / "new"
    before = cache.file_digest(path)
    other.write_text("A.safetensors")
    other.rename(path)
    assert cache.file_digest(path) != before


def test_a_known_file_is_not_read_again(model: Path, tmp_path: Path) -> None:
    path = model / "a.safetensors"
    stat = path.stat()
    key = f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}"
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "digests.json").write_text(f'{{"{key}": "known"}}')
    assert DigestCache(tmp_path / "cache" / "digests.json").file_digest(path) == "known"


def test_what_was_read_is_remembered(cache: DigestCache, model: Path, tmp_path: Path) -> None:
    digest = cache.file_digest(model / "a.safetensors")
    assert digest in (tmp_path / "cache" / "digests.json").read_text()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["digests.json"]


@pytest.mark.parametrize("content", ["", "no json", "[]", "5", "null", '"x"', '{"a": {}}'])
def test_a_broken_cache_costs_time_only(model: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / "digests.json").write_text(content)
    digest = DigestCache(tmp_path / "digests.json").file_digest(model / "a.safetensors")
    assert digest == blake3(b"a.safetensors").hexdigest()


def test_a_cache_that_cannot_be_kept_costs_time_only(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = DigestCache(tmp_path / "file" / "digests.json")
    assert cache.file_digest(model / "a.safetensors") == blake3(b"a.safetensors").hexdigest()


def test_a_file_that_is_not_there_is_an_error(cache: DigestCache, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        cache.file_digest(tmp_path / "nothing")


def test_the_order_of_files_does_not_matter(cache: DigestCache, model: Path) -> None:
    paths = sorted(model.iterdir())
    assert cache.files_digest(paths, model) == cache.files_digest(reversed(paths), model)


def test_where_the_model_lies_does_not_matter(cache: DigestCache, model: Path) -> None:
    before = cache.files_digest(model.iterdir(), model)
    moved = model.rename(model.with_name("moved"))
    assert cache.files_digest(moved.iterdir(), moved) == before


def test_names_matter(cache: DigestCache, model: Path) -> None:
    before = cache.files_digest(model.iterdir(), model)
    (model / "a.safetensors").rename(model / "c.safetensors")
    assert cache.files_digest(model.iterdir(), model) != before


def test_swapped_contents_matter(cache: DigestCache, model: Path) -> None:
    before = cache.files_digest(model.iterdir(), model)
    (model / "a.safetensors").rename(model / "x")
    (model / "b.safetensors").rename(model / "a.safetensors")
    (model / "x").rename(model / "b.safetensors")
    assert cache.files_digest(model.iterdir(), model) != before


def test_every_weight_file_counts_whichever_is_loaded(model: Path) -> None:
    (model / "pytorch_model.bin").touch()
    assert sorted(path.name for path in weight_files(model)) == [
        "a.safetensors",
        "b.safetensors",
        "pytorch_model.bin",
    ]


@pytest.mark.parametrize("name", ["m.bin", "m.pt", "m.pth", "m.gguf"])
def test_other_weights_are_found(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert weight_files(tmp_path) == [tmp_path / name]


def test_one_file_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    assert weight_files(tmp_path / "m.gguf") == [tmp_path / "m.gguf"]


def test_a_folder_called_like_weights_is_none(model: Path) -> None:
    (model / "optimizer.safetensors").mkdir()
    assert len(weight_files(model)) == 2


def test_a_model_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    with pytest.raises(UnsupportedEngineError, match="holds no weight files"):
        weight_files(tmp_path)


def test_tokenizer_files_are_those_that_are_there(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "vocab.json", "README.md"):
        (tmp_path / name).touch()
    assert [path.name for path in tokenizer_files(tmp_path)] == ["tokenizer.json", "vocab.json"]
