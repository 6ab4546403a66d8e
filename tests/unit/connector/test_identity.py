from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from sessiond.connector.contents import Content, Stamp
from sessiond.connector.digests import DigestCache
from sessiond.connector.identity import Identity, Part
from sessiond.connector.layers import LayerFacts, Told
from sessiond.domain.fingerprint import Fingerprint
from sessiond.domain.reasons import Cause, Reason
from sessiond.testing.snapshots import a_key_ring

TOLD = Told({"layer.0": LayerFacts("CPU_ATTN", ((1.0,), (1.0,)))})
BLOB = hashlib.sha256(b"weights").hexdigest()


class SlowCache(DigestCache):
    """A digest cache whose reading a test holds up."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, a_key_ring(), settled_s=-1)
        self.may_read = threading.Event()

    def content(self, path: Path, stamp: Stamp) -> Content:
        assert self.may_read.wait(30)
        return super().content(path, stamp)


def told(digests: Mapping[str, str], workers: Told) -> Fingerprint:
    backends: list[str] = sorted(layer.backend for layer in workers.layers.values())
    return Fingerprint({**digests, "backends": backends})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_text("weights")
    time.sleep(0.02)
    return folder


@pytest.fixture
def loaded_ns(model: Path) -> int:
    assert model.exists()  # it was there before
    now_ns = time.time_ns()
    time.sleep(0.02)
    return now_ns


@pytest.fixture
def open_cache(tmp_path: Path) -> Callable[[], SlowCache]:
    return lambda: SlowCache(tmp_path / "cache" / "digests.json")


def meet(model: Path, loaded_ns: int) -> list[Part]:
    return [Part.meet("weights", model, loaded_ns, model.glob("*.safetensors"), complete=True)]


def taken(parts: list[Part], cache: SlowCache) -> Fingerprint | Cause | None:
    """Return what comes of reading everything."""
    cache.may_read.set()
    identity = Identity(parts, cache, told)
    identity.take(TOLD)
    identity.wait(30)
    return identity.outcome


def test_nothing_is_known_before_the_workers_have_told(
    model: Path, loaded_ns: int, open_cache: Callable[[], SlowCache]
) -> None:
    identity = Identity(meet(model, loaded_ns), open_cache(), told)
    assert identity.outcome is None
    assert identity.pending == Cause(Reason.IDENTITY_PENDING, "reading 0.0 GB of files")


def outcome_of(identity: Identity) -> Fingerprint | Cause | None:
    return identity.outcome


def test_the_first_time_it_is_read_while_the_engine_serves(
    model: Path, loaded_ns: int, open_cache: Callable[[], SlowCache]
) -> None:
    cache = open_cache()
    identity = Identity(meet(model, loaded_ns), cache, told)
    identity.take(TOLD)  # returns, although nothing may be read yet
    identity.wait(0.05)
    assert outcome_of(identity) is None
    cache.may_read.set()
    identity.wait(30)
    assert isinstance(identity.outcome, Fingerprint)
    assert identity.outcome.fields["backends"] == ["CPU_ATTN"]


def test_later_it_is_known_at_once(
    model: Path, loaded_ns: int, open_cache: Callable[[], SlowCache]
) -> None:
    first = taken(meet(model, loaded_ns), open_cache())
    identity = Identity(meet(model, loaded_ns), open_cache(), told)
    identity.take(TOLD)  # of a cache that would wait for ever
    assert isinstance(identity.outcome, Fingerprint)
    assert identity.outcome == first


def test_only_the_first_word_of_the_workers_counts(
    model: Path, loaded_ns: int, open_cache: Callable[[], SlowCache]
) -> None:
    cache = open_cache()
    cache.may_read.set()
    identity = Identity(meet(model, loaded_ns), cache, told)
    identity.take(TOLD)
    identity.take(Told())
    identity.wait(30)
    assert isinstance(identity.outcome, Fingerprint)
    assert identity.outcome.fields["backends"] == ["CPU_ATTN"]


def test_a_doubt_of_the_workers_leaves_it_unknown(
    model: Path, loaded_ns: int, open_cache: Callable[[], SlowCache]
) -> None:
    identity = Identity(meet(model, loaded_ns), open_cache(), told)
    identity.take(Told(TOLD.layers, doubt="other code"))
    assert identity.outcome == Cause(Reason.IDENTITY_UNKNOWN, "other code")


def test_a_doubt_about_what_was_loaded_leaves_it_unknown(
    model: Path, loaded_ns: int, open_cache: Callable[[], SlowCache]
) -> None:
    identity = Identity(meet(model, loaded_ns), open_cache(), told, "another revision")
    identity.take(TOLD)
    assert identity.outcome == Cause(Reason.IDENTITY_UNKNOWN, "another revision")


def test_workers_that_tell_nothing_leave_it_unknown(
    model: Path, loaded_ns: int, open_cache: Callable[[], SlowCache]
) -> None:
    identity = Identity(meet(model, loaded_ns), open_cache(), told)
    identity.take(Told())
    assert isinstance(identity.outcome, Cause)
    assert identity.outcome.reason is Reason.IDENTITY_UNKNOWN


def link(model: Path) -> None:
    os.link(model / "model.safetensors", model.with_name("linked"))


def forge(model: Path) -> None:
    path = model / "model.safetensors"
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    path.write_text("WEIGHTS")
    os.utime(path, ns=times)


@pytest.mark.parametrize(("touch", "known"), [(link, True), (forge, False)])
def test_a_file_that_was_touched_as_the_engine_began_is_known_by_what_it_was_before(
    model: Path,
    loaded_ns: int,
    open_cache: Callable[[], SlowCache],
    touch: Callable[[Path], None],
    known: bool,  # noqa: FBT001 - a parameter
) -> None:
    before = taken(meet(model, loaded_ns), open_cache())  # by an engine of before
    touch(model)
    outcome = taken(meet(model, loaded_ns), open_cache())
    assert (outcome == before) == known
    assert isinstance(outcome, Fingerprint if known else Cause)


def test_a_file_that_was_touched_and_never_read_before_is_unknown(
    model: Path, loaded_ns: int, open_cache: Callable[[], SlowCache]
) -> None:
    link(model)
    assert isinstance(taken(meet(model, loaded_ns), open_cache()), Cause)


def rewrite(model: Path) -> None:
    (model / "model.safetensors").write_text("WEIGHTS")


def remove(model: Path) -> None:
    (model / "model.safetensors").unlink()


def add(model: Path) -> None:
    (model / "model-2.safetensors").write_text("more")


@pytest.mark.parametrize("change", [rewrite, add])
def test_what_was_changed_while_the_engine_began_is_unknown_at_once(
    model: Path, loaded_ns: int, open_cache: Callable[[], SlowCache], change: Callable[[Path], None]
) -> None:
    change(model)
    identity = Identity(meet(model, loaded_ns), open_cache(), told)
    identity.take(TOLD)  # nothing is read for that
    assert isinstance(identity.outcome, Cause)
    assert identity.outcome.reason is Reason.IDENTITY_UNKNOWN
    assert "the engine" in identity.outcome.detail


@pytest.mark.parametrize("change", [rewrite, remove])
def test_what_is_changed_later_and_before_it_was_read_is_unknown(
    model: Path, loaded_ns: int, open_cache: Callable[[], SlowCache], change: Callable[[Path], None]
) -> None:
    parts = meet(model, loaded_ns)
    change(model)
    outcome = taken(parts, open_cache())
    assert isinstance(outcome, Cause)
    assert outcome.reason is Reason.IDENTITY_UNKNOWN


def test_what_changes_after_it_was_read_is_no_more_its_business(
    model: Path, loaded_ns: int, open_cache: Callable[[], SlowCache]
) -> None:
    cache = open_cache()
    outcome = taken(meet(model, loaded_ns), cache)
    rewrite(model)
    assert isinstance(outcome, Fingerprint)
    assert cache.changed_files() == ["model.safetensors"]


def test_a_failure_of_ours_is_told_and_never_pending_for_ever(
    model: Path, loaded_ns: int, open_cache: Callable[[], SlowCache]
) -> None:
    def fail(_digests: Mapping[str, str], _told: Told) -> Fingerprint:
        raise ZeroDivisionError

    cache = open_cache()
    cache.may_read.set()
    identity = Identity(meet(model, loaded_ns), cache, fail)
    identity.take(TOLD)
    identity.wait(30)
    assert isinstance(identity.outcome, Cause)
    assert identity.outcome.reason is Reason.IDENTITY_UNKNOWN


# --- the Hugging Face cache --------------------------------------------------------------


def download(tmp_path: Path, data: bytes, name: str) -> Path:
    """Put a model into the hub's cache; returns its snapshot."""
    cached = tmp_path / "hub" / "models--owner--model"
    snapshot, blob = cached / "snapshots" / ("c" * 40), cached / "blobs" / name
    for folder in (snapshot, blob.parent):
        folder.mkdir(parents=True)
    blob.write_bytes(data)
    (snapshot / "model.safetensors").symlink_to(os.path.relpath(blob, snapshot))
    return snapshot


def test_a_model_that_was_downloaded_while_the_engine_began_is_known(
    tmp_path: Path, loaded_ns: int, open_cache: Callable[[], SlowCache]
) -> None:
    snapshot = download(tmp_path, b"weights", BLOB)
    part = Part.meet("weights", snapshot, loaded_ns, snapshot.iterdir())
    assert isinstance(taken([part], open_cache()), Fingerprint)


def test_a_download_that_is_not_what_its_name_says_is_unknown(
    tmp_path: Path, loaded_ns: int, open_cache: Callable[[], SlowCache]
) -> None:
    snapshot = download(tmp_path, b"WEIGHTS", BLOB)
    part = Part.meet("weights", snapshot, loaded_ns, snapshot.iterdir())
    outcome = taken([part], open_cache())
    assert isinstance(outcome, Cause)
    assert outcome.reason is Reason.IDENTITY_UNKNOWN


def test_an_old_blob_that_is_not_what_its_name_says_is_told_by_its_content(
    tmp_path: Path, open_cache: Callable[[], SlowCache]
) -> None:
    honest, lying = (
        download(tmp_path / kind, data, BLOB)
        for kind, data in (("honest", b"weights"), ("lying", b"WEIGHTS"))
    )
    later_ns = time.time_ns() + 10**9
    outcomes = [
        taken([Part.meet("weights", each, later_ns, each.iterdir())], open_cache())
        for each in (honest, lying)
    ]
    assert all(isinstance(outcome, Fingerprint) for outcome in outcomes)
    assert outcomes[0] != outcomes[1]
