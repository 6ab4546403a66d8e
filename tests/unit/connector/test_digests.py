from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3

from sessiond.connector.contents import Content, Stamp, blob_name
from sessiond.connector.digests import DigestCache
from sessiond.domain.errors import FileChangedError
from sessiond.domain.keys import KeyRing
from sessiond.testing.snapshots import a_key_ring

KEYS = a_key_ring()


@pytest.fixture
def cache_file(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "digests.json"


@pytest.fixture
def open_cache(cache_file: Path) -> Callable[..., DigestCache]:
    """Open the cache, each time as an engine does that has just started."""

    def opened(keys: KeyRing = KEYS, settled_s: float = -1.0) -> DigestCache:
        return DigestCache(cache_file, keys, settled_s=settled_s)

    return opened


@pytest.fixture
def cache(open_cache: Callable[..., DigestCache]) -> DigestCache:
    return open_cache()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("a.safetensors", "b.safetensors", "config.json"):
        (folder / name).write_text(name)
    return folder


@pytest.fixture
def weights(model: Path) -> Path:
    return model / "a.safetensors"


def stamp_of(path: Path) -> Stamp:
    return Stamp.of(path.stat())


def test_a_digest_is_blake3_of_the_content(cache: DigestCache, weights: Path) -> None:
    assert cache.file_digest(weights) == blake3(b"a.safetensors").hexdigest()


def test_a_file_of_many_pieces_is_read_to_its_end(cache: DigestCache, tmp_path: Path) -> None:
    data = os.urandom((9 << 20) + 5)
    (tmp_path / "large").write_bytes(data)
    assert cache.file_digest(tmp_path / "large") == blake3(data).hexdigest()


def test_an_empty_file_has_a_digest(cache: DigestCache, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert cache.file_digest(tmp_path / "empty") == blake3(b"").hexdigest()


def test_a_changed_file_of_the_same_size_and_time_is_noticed(
    cache: DigestCache, weights: Path
) -> None:
    before, stat = cache.file_digest(weights), weights.stat()
    weights.write_text("A.safetensors")
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # a change time cannot be set
    assert weights.stat().st_mtime_ns == stat.st_mtime_ns
    assert cache.file_digest(weights) != before


def test_another_file_in_its_place_is_noticed(
    cache: DigestCache, model: Path, weights: Path
) -> None:
    before = cache.file_digest(weights)
    (model / "new").write_text("A.safetensors")
    (model / "new").rename(weights)
    assert cache.file_digest(weights) != before


def test_a_file_that_is_not_the_one_that_was_met_has_no_digest(
    cache: DigestCache, weights: Path
) -> None:
    met = stamp_of(weights)
    weights.write_text("A.safetensors, and more")
    with pytest.raises(FileChangedError, match=r"a\.safetensors was changed"):
        cache.content(weights, met)


def test_a_file_that_changes_while_it_is_read_has_no_digest(
    cache: DigestCache, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = stamp_of(weights)

    class Meddler:
        def update(self, _: memoryview) -> None:
            weights.write_text("A.safetensors, and more")

        def hexdigest(self) -> str:
            return "0" * 64

    monkeypatch.setattr("sessiond.connector.contents.ALGORITHMS", {"blake3": lambda _: Meddler()})
    with pytest.raises(FileChangedError):
        cache.content(weights, met)


def test_a_known_file_is_not_read_again(
    open_cache: Callable[..., DigestCache], weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = open_cache().file_digest(weights)
    monkeypatch.setattr("sessiond.connector.contents.ALGORITHMS", {})  # nothing can be read now
    known = open_cache()
    expected = Content(f"blake3:{digest}", is_named=False)
    assert known.known_content(weights, stamp_of(weights)) == expected
    assert known.content(weights, stamp_of(weights)) == expected


def test_what_was_read_is_remembered_sealed(
    cache: DigestCache, weights: Path, cache_file: Path
) -> None:
    digest = cache.file_digest(weights)
    assert digest in cache_file.read_text()
    assert [path.name for path in cache_file.parent.iterdir()] == [cache_file.name]
    assert cache_file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "content", ["", "no json", "[]", "5", "null", '"x"', '{"a": {}}', "[" * 100_000]
)
def test_a_broken_cache_costs_time_only(
    open_cache: Callable[..., DigestCache], weights: Path, cache_file: Path, content: str
) -> None:
    cache_file.parent.mkdir()
    cache_file.write_text(content)
    assert open_cache().file_digest(weights) == blake3(b"a.safetensors").hexdigest()


@pytest.mark.parametrize("how", ["a changed digest", "another key"])
def test_a_planted_digest_is_never_believed(
    open_cache: Callable[..., DigestCache], weights: Path, cache_file: Path, how: str
) -> None:
    digest = open_cache().file_digest(weights)
    lie = "f" * len(digest)
    if how == "another key":
        cache_file.unlink()
        open_cache(a_key_ring(8)).file_digest(weights)
    cache_file.write_text(cache_file.read_text().replace(digest, lie))
    assert lie in cache_file.read_text()
    assert open_cache().known_content(weights, stamp_of(weights)) is None
    assert open_cache().file_digest(weights) == digest


@pytest.mark.parametrize("entry", ["x", 5, None, [], {"blake3": "zz"}, {"md5": "0" * 64}])
def test_an_entry_that_is_no_digest_is_not_there(
    open_cache: Callable[..., DigestCache], weights: Path, cache_file: Path, entry: object
) -> None:
    from sessiond.store import sealed  # noqa: PLC0415 - writes what only we could have written

    cache_file.parent.mkdir()
    record = json.loads(json.dumps({stamp_of(weights).key: entry}))
    cache_file.write_bytes(sealed.pack_json("digests", record, KEYS))
    assert open_cache().known_content(weights, stamp_of(weights)) is None
    assert open_cache().file_digest(weights) == blake3(b"a.safetensors").hexdigest()


def test_a_cache_that_cannot_be_kept_costs_time_only(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = DigestCache(tmp_path / "file" / "digests.json", KEYS, settled_s=-1)
    assert cache.file_digest(weights) == blake3(b"a.safetensors").hexdigest()


def test_engines_that_share_a_cache_keep_what_each_other_found(
    open_cache: Callable[..., DigestCache], model: Path
) -> None:
    one, other = open_cache(), open_cache()
    paths = [model / "a.safetensors", model / "b.safetensors"]
    for cache, path in zip((one, other), paths, strict=True):
        cache.file_digest(path)
    assert all(open_cache().known_content(path, stamp_of(path)) for path in paths)


def test_a_file_that_was_just_written_is_not_remembered(
    open_cache: Callable[..., DigestCache], weights: Path
) -> None:
    # Its next change could fall into the same grain of the file system's clock.
    open_cache(settled_s=60.0).file_digest(weights)
    assert open_cache().known_content(weights, stamp_of(weights)) is None
    time.sleep(0.02)
    open_cache(settled_s=0.01).file_digest(weights)
    assert open_cache().known_content(weights, stamp_of(weights)) is not None


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


def test_names_matter(cache: DigestCache, model: Path, weights: Path) -> None:
    before = cache.files_digest(model.iterdir(), model)
    weights.rename(model / "c.safetensors")
    assert cache.files_digest(model.iterdir(), model) != before


def test_swapped_contents_matter(cache: DigestCache, model: Path, weights: Path) -> None:
    before = cache.files_digest(model.iterdir(), model)
    weights.rename(model / "x")
    (model / "b.safetensors").rename(weights)
    (model / "x").rename(model / "b.safetensors")
    assert cache.files_digest(model.iterdir(), model) != before


def test_a_file_that_was_only_touched_is_known_by_its_earlier_digest(
    open_cache: Callable[..., DigestCache], weights: Path
) -> None:
    digest = open_cache().file_digest(weights)
    time.sleep(0.02)
    moment_ns = time.time_ns()
    time.sleep(0.02)
    os.link(weights, weights.with_name("linked"))
    assert open_cache().known_content(weights, stamp_of(weights)) is None
    assert open_cache().digest_before(stamp_of(weights), moment_ns) == digest
    assert open_cache().digest_before(stamp_of(weights), 0) is None
    assert open_cache().digest_before(stamp_of(weights.with_name("b.safetensors")), 2**63) is None


def test_files_that_changed_since_are_named(cache: DigestCache, model: Path) -> None:
    cache.files_digest(model.iterdir(), model)
    assert cache.changed_files() == []
    (model / "b.safetensors").write_text("changed")
    (model / "config.json").unlink()
    assert cache.changed_files() == ["b.safetensors", "config.json"]


# --- the Hugging Face cache --------------------------------------------------------------


def add_blob(cached: Path, name: str, data: bytes, claim: str) -> Path:
    """Put a file into a Hugging Face cache under the name of some content."""
    blob, link = cached / "blobs" / claim, cached / "snapshots" / ("c" * 40) / name
    for path in (blob, link):
        path.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(data)
    link.symlink_to(os.path.relpath(blob, link.parent))
    return link


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    return tmp_path / "hub" / "models--owner--model"


def git_name(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def test_a_large_blob_is_told_by_its_name(cache: DigestCache, cached: Path) -> None:
    name = hashlib.sha256(b"weights").hexdigest()
    link = add_blob(cached, "model.safetensors", b"weights", name)
    assert blob_name(link) == name
    assert cache.content(link, stamp_of(link)) == Content(f"sha256:{name}", is_named=True)


def test_a_small_blob_is_told_by_its_content_and_its_name_is_checked(
    cache: DigestCache, cached: Path
) -> None:
    link = add_blob(cached, "config.json", b"small", git_name(b"small"))
    expected = Content(f"blake3:{blake3(b'small').hexdigest()}", is_named=True)
    assert cache.content(link, stamp_of(link)) == expected


@pytest.mark.parametrize("length", [40, 64])
def test_a_name_that_lies_is_not_believed(cache: DigestCache, cached: Path, length: int) -> None:
    link = add_blob(cached, "model.safetensors", b"other weights", "a" * length)
    found = cache.content(link, stamp_of(link))
    assert not found.is_named
    assert "a" * length not in found.digest


def test_a_blob_is_read_once(open_cache: Callable[..., DigestCache], cached: Path) -> None:
    name = hashlib.sha256(b"weights").hexdigest()
    link = add_blob(cached, "model.safetensors", b"weights", name)
    assert open_cache().known_content(link, stamp_of(link)) is None
    found = open_cache().content(link, stamp_of(link))
    assert open_cache().known_content(link, stamp_of(link)) == found


@pytest.mark.parametrize(
    "place",
    [
        "hub/models--a--b/blobs/not-a-digest",
        f"hub/models--a--b/other/{'a' * 64}",
        f"hub/elsewhere/blobs/{'a' * 64}",
    ],
)
def test_files_elsewhere_have_no_such_name(tmp_path: Path, place: str) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.touch()
    assert blob_name(path) is None
