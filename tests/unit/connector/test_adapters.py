from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sessiond.connector import adapters
from sessiond.connector.adapter_files import (
    content_digest,
    find_folder,
    newest_change_unix_s,
    take_stamps,
)
from sessiond.connector.adapters import AdapterBook, lora_facts, module_of
from sessiond.connector.digests import SETTLED_S, DigestCache
from sessiond.connector.frontend import LoraModule
from sessiond.domain.engines import ServedAdapter
from sessiond.testing.snapshots import a_key_ring

FACTS = {"dtype": "bfloat16"}
#: What a test has just written is old for a book that begins so much later.
LATER_S = 60.0


def write(folder: Path, weights: str = "a", config: str = "{}") -> Path:
    """Write something that has an adapter's files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(config)
    (folder / "adapter_model.safetensors").write_text(weights)
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> DigestCache:
    return DigestCache(tmp_path / "digests.json", a_key_ring())


@pytest.fixture
def poet(tmp_path: Path) -> Path:
    return write(tmp_path / "poet")


@dataclass
class Told:
    """What a book told everybody."""

    news: list[tuple[ServedAdapter, ...]] = field(default_factory=list)

    def wait_for(self, found: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 10
        while not found():
            assert time.monotonic() < deadline_s, self.news
            time.sleep(0.002)


@pytest.fixture
def told() -> Told:
    return Told()


def written(cache: DigestCache, told: Told, **options: Any) -> AdapterBook:  # noqa: ANN401
    """Return a book whose thread does not run yet."""
    book = AdapterBook(cache, FACTS, **{"trusting": False, **options})
    book.on_change = told.news.append
    book._began_unix_s += LATER_S
    return book


def started(cache: DigestCache, told: Told, *modules: LoraModule, **options: Any) -> AdapterBook:  # noqa: ANN401
    book = written(cache, told, **options)
    book.expect(modules)
    book.start()
    told.wait_for(lambda: len(told.news) >= len(modules))
    return book


def digest_of(folder: Path, cache: DigestCache, **facts: Any) -> str:  # noqa: ANN401 - JSON
    return content_digest(folder, cache, {**FACTS, "fused_experts": False, **facts})


# What the digest is of


CHANGES: dict[str, Callable[[Path], object]] = {
    "weights": lambda folder: write(folder, weights="b"),
    "configuration": lambda folder: write(folder, config='{"lora_alpha": 9}'),
    "format": lambda folder: (folder / "adapter_model.safetensors").rename(
        folder / "adapter_model.bin"
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_each_file_decides_the_digest(
    poet: Path, cache: DigestCache, change: Callable[[Path], object]
) -> None:
    before, stamp = digest_of(poet, cache), take_stamps(poet)
    change(poet)
    assert digest_of(poet, cache) != before
    assert take_stamps(poet) != stamp


@pytest.mark.parametrize("facts", [{"dtype": "float32"}, {"fused_experts": True}])
def test_options_decide_the_digest(poet: Path, cache: DigestCache, facts: dict[str, Any]) -> None:
    assert digest_of(poet, cache, **facts) != digest_of(poet, cache)


def test_neither_the_path_nor_other_files_decide_it(
    poet: Path, tmp_path: Path, cache: DigestCache
) -> None:
    before = digest_of(poet, cache)
    moved = Path(shutil.copytree(poet, tmp_path / "elsewhere" / "other"))
    (moved / "README.md").write_text("about")
    (moved / "adapter_model.bin").write_text("vLLM takes the other one")
    assert digest_of(moved, cache) == before


def test_an_adapter_without_weights_is_none(poet: Path, cache: DigestCache) -> None:
    (poet / "adapter_model.safetensors").unlink()
    with pytest.raises(FileNotFoundError):
        digest_of(poet, cache)
    with pytest.raises(FileNotFoundError):
        newest_change_unix_s(poet)


def test_folders_are_found_as_vllm_finds_them(poet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(poet.parent)
    monkeypatch.setenv("HOME", str(poet.parent))
    assert find_folder(str(poet)) == find_folder("poet") == find_folder("~/poet") == poet


@pytest.mark.parametrize("path", ["", "/nowhere/at/all", "nobody/nothing", "a/b/c/d"])
def test_what_is_not_there_is_not_found(path: str) -> None:
    with pytest.raises(FileNotFoundError):
        find_folder(path)


def test_a_downloaded_repository_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "hub" / "models--some--poet"
    write(repository / "snapshots" / ("a" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    found = find_folder("some/poet")
    assert found == repository / "snapshots" / ("a" * 40)
    # Another revision is downloaded: vLLM would load that one from now on.
    write(repository / "snapshots" / ("b" * 40))
    (repository / "refs" / "main").write_text("b" * 40)
    assert find_folder("some/poet") != found
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", "1")
    with pytest.raises(FileNotFoundError, match="names are ModelScope's"):
        find_folder("some/poet")


# What is proved


def test_an_expected_adapter_is_digested_in_the_background(
    poet: Path, cache: DigestCache, told: Told
) -> None:
    module = LoraModule("poet", str(poet))
    book = started(cache, told, module)
    expected = ServedAdapter("poet", digest_of(poet, cache))
    assert told.news == [(expected,)]
    assert book.look(module) == expected
    assert book.served() == (expected,)
    assert expected.cause() is None
    assert len(told.news) == 1  # a look at what is as it was is no news


def test_until_it_is_digested_nothing_is_proved(poet: Path, cache: DigestCache) -> None:
    book = AdapterBook(cache, FACTS, trusting=False)
    book._began_unix_s += LATER_S
    book.expect([LoraModule("poet", str(poet))])
    (found,) = book.served()
    cause = found.cause()
    assert (found.digest, found.pending) == ("", True)
    assert cause is not None
    assert cause.reason == "adapter_unproven"
    assert "'poet'" in cause.detail
    assert "being read" in cause.detail


HARM: dict[str, Callable[[Path, Path], object]] = {
    "overwritten in place": lambda poet, _: write(poet, weights="b"),
    "touched": lambda poet, _: os.utime(poet / "adapter_config.json"),
    "removed": lambda poet, _: shutil.rmtree(poet),
    "swapped": lambda poet, other: (poet.rename(poet.parent / "x"), other.rename(poet)),
    "shadowed": lambda poet, _: (poet / "adapter_model.bin").write_text("new"),
}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
def test_an_adapter_whose_files_change_is_never_trusted_again(
    harm: Callable[[Path, Path], object],
    poet: Path,
    cache: DigestCache,
    told: Told,
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = write(poet.parent / "other", weights="o")
    kept = Path(shutil.copytree(poet, poet.parent / "kept"))
    module = LoraModule("poet", str(poet))
    book = started(cache, told, module)
    harm(poet, other)
    found = book.look(module)
    assert (found.digest, "changed" in found.unproven) == ("", True)
    assert told.news[-1] == (found,)
    assert "'poet' changed" in caplog.text
    # What it was before is put back: whatever was loaded meanwhile is still in memory.
    shutil.rmtree(poet, ignore_errors=True)
    kept.rename(poet)
    assert book.look(module).digest == ""


def test_a_change_while_it_is_digested_is_noticed(
    poet: Path, cache: DigestCache, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(folder: Path, *args: Any) -> str:  # noqa: ANN401 - as content_digest
        found = content_digest(folder, *args)
        write(folder, weights="b")
        return found

    monkeypatch.setattr(adapters, "content_digest", slow)
    book = started(cache, told, LoraModule("poet", str(poet)))
    assert book.served()[0].digest == ""


def test_a_change_is_noticed_without_requests(
    poet: Path, cache: DigestCache, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "_LOOK_S", 0.01)
    book = started(cache, told, LoraModule("poet", str(poet)))
    assert book.served()[0].digest
    write(poet, weights="b")
    told.wait_for(lambda: book.served()[0].digest == "")
    told.wait_for(lambda: told.news[-1] == book.served())


def test_one_that_cannot_be_read_is_unproven(
    poet: Path, tmp_path: Path, cache: DigestCache, told: Told
) -> None:
    (poet / "adapter_config.json").unlink()
    (poet / "adapter_config.json").mkdir()
    book = started(
        cache, told, LoraModule("poet", str(poet)), LoraModule("none", str(tmp_path / "none"))
    )
    assert {(one.name, one.digest) for one in book.served()} == {("poet", ""), ("none", "")}
    assert all("cannot be read" in one.unproven for one in book.served())


# Adapters of which the command line says nothing


def test_one_first_seen_in_a_request_is_known_later(
    poet: Path, cache: DigestCache, told: Told
) -> None:
    book = written(cache, told)
    module = LoraModule("poet", str(poet))
    assert book.look(module).digest == ""
    book.start()
    told.wait_for(lambda: bool(book.served()[0].digest))
    assert book.look(module) == ServedAdapter("poet", digest_of(poet, cache))


@pytest.mark.parametrize("newer", ["adapter_config.json", "adapter_model.safetensors", "."])
def test_the_newest_change_counts(poet: Path, newer: str) -> None:
    before = newest_change_unix_s(poet)
    time.sleep(0.02)  # the clock of a file system ticks every few milliseconds
    os.utime(poet / newer)
    assert newest_change_unix_s(poet) > before


def test_a_link_that_is_pointed_elsewhere_is_a_change(poet: Path) -> None:
    before = newest_change_unix_s(poet)
    time.sleep(0.02)
    link = poet.parent / "link"
    link.symlink_to(poet)
    assert newest_change_unix_s(link) > before


@pytest.mark.parametrize("age_s", [-60.0, 0.0, SETTLED_S / 2])
def test_one_that_is_not_older_than_the_engine_is_never_trusted(
    poet: Path, cache: DigestCache, told: Told, age_s: float
) -> None:
    book = started(cache, told)
    book._began_unix_s = newest_change_unix_s(poet) + age_s
    module = LoraModule("poet", str(poet))
    assert "newer than the engine" in book.look(module).unproven
    told.wait_for(lambda: bool(told.news))  # the book's thread has seen it too
    assert book.look(module).digest == ""


def test_an_operator_may_promise_that_it_does_not_change(
    poet: Path, cache: DigestCache, told: Told
) -> None:
    book = started(cache, told, trusting=True)
    book._began_unix_s = newest_change_unix_s(poet) - LATER_S
    module = LoraModule("poet", str(poet))
    book.meet(module)
    told.wait_for(lambda: bool(book.served() and book.served()[0].digest))
    # The promise is broken: that one is not trusted any more.
    write(poet, weights="b")
    assert "changed" in book.look(module).unproven


def test_a_name_means_what_was_asked_for_last(
    poet: Path, tmp_path: Path, cache: DigestCache, told: Told
) -> None:
    other = write(tmp_path / "other", weights="o")
    first, second = LoraModule("poet", str(poet)), LoraModule("poet", str(other))
    book = started(cache, told, first)
    book.meet(second)
    told.wait_for(lambda: book.served()[0].digest == digest_of(other, cache))
    assert book.look(first).digest == digest_of(poet, cache)
    assert told.news[-1] == book.served() == (book.look(first),)


# vLLM's objects


class Config:
    lora_dtype = "torch.bfloat16"
    target_modules = ("q_proj", "k_proj")
    enable_moe_shared_loras = True


def test_options_are_read_from_vllms_configuration() -> None:
    config: Any = Config()
    assert lora_facts(config) == {
        "dtype": "bfloat16",
        "target_modules": ["k_proj", "q_proj"],
        "mixed_experts": False,
        "shared_experts": True,
    }
    assert lora_facts(None) == {}


class Asked:
    lora_name = "poet"
    lora_path = "/adapters/poet"
    is_3d_lora_weight = True


def test_a_requests_adapter_is_read() -> None:
    asked: Any = Asked()
    assert module_of(asked) == LoraModule("poet", "/adapters/poet", fused_experts=True)
    asked.tensorizer_config_dict = {"tensorizer_dir": "/archive"}
    assert module_of(asked).path == ""
