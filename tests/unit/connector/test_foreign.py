"""Code from elsewhere than vLLM: whatever way it came by, other code is another fact."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import dynamic_module_utils

from sessiond.connector import foreign
from sessiond.connector.foreign import foreign_code
from sessiond.connector.layers import Code
from sessiond.connector.workers import read_worker
from sessiond.domain.errors import FileChangedError
from sessiond.testing.configured import vllm_imported

COMMITS = ("a" * 40, "b" * 40)
NOTHING: Code = frozenset()
DYNAMIC = re.compile(r"transformers_modules\..*\.modeling")


@pytest.fixture(scope="module", autouse=True)
def vllm() -> Iterator[None]:
    with vllm_imported():
        yield


def config(**about: Any) -> Any:  # noqa: ANN401 - vLLM's
    """Return as much of vLLM's configuration as is read, of one of vLLM's own models."""
    worker = "vllm.v1.worker.cpu_worker.CPUWorker"
    made = SimpleNamespace(
        model_config=SimpleNamespace(architecture="LlamaForCausalLM", model_class_overrides={}),
        compilation_config=SimpleNamespace(
            static_forward_context={}, backend="inductor", inductor_passes={}
        ),
        parallel_config=SimpleNamespace(worker_cls=worker, worker_extension_cls=""),
        quant_config=None,
    )
    for path, value in about.items():
        part, _, name = path.partition("__")
        setattr(getattr(made, part) if name else made, name or part, value)
    return made


@pytest.fixture(autouse=True)
def model_class(monkeypatch: pytest.MonkeyPatch) -> Callable[[type], None]:
    """vLLM's own class at first; returns what makes another one the model's."""

    def choose(chosen: type) -> None:
        monkeypatch.setattr(
            "vllm.model_executor.model_loader.utils.get_model_cls", lambda _: chosen
        )

    from vllm.model_executor.models.llama import LlamaForCausalLM  # noqa: PLC0415 - slow

    choose(LlamaForCausalLM)
    return choose


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Writes the module ``other.code``, and imports it as a process would that starts then."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "other").mkdir()  # a folder without code: no module of its own

    def write(source: str) -> Any:  # noqa: ANN401 - the module
        (tmp_path / "other" / "code.py").write_text(source)
        _forget("other")
        # Not what was compiled of the one before it, in the same second.
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        importlib.invalidate_caches()
        return importlib.import_module("other.code")

    monkeypatch.setattr(foreign, "server_start_ns", lambda: 2**63)
    yield write
    _forget("other")


def _forget(package: str) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


ONE, TWO = "class Other: pass\ndef change(): pass\n", "class Other: pass\ndef change(): 1\n"
WAYS: dict[str, Callable[[Any], Any]] = {
    "override": lambda _: config(model_config__model_class_overrides={"L": "other.code:Other"}),
    "quantization": lambda code: config(quant_config=code.Other()),
    "a layer": lambda code: config(compilation_config__static_forward_context={"a": code.Other()}),
    "a backend": lambda code: config(
        compilation_config__static_forward_context={
            "a": type("A", (), {"__module__": "vllm", "get_attn_backend": lambda _: code.Other})()
        }
    ),
    "a worker": lambda _: config(parallel_config__worker_cls="other.code.Other"),
    "its extension": lambda _: config(parallel_config__worker_extension_cls="other.code.Other"),
    "a compiler": lambda _: config(compilation_config__backend="other.code.change"),
    "a pass": lambda _: config(compilation_config__inductor_passes={"p": "other.code.change"}),
    "a function": lambda code: config(compilation_config__inductor_passes={"p": code.change}),
}


def test_vllms_own_code_is_told_by_its_version() -> None:
    assert foreign_code(config()) == NOTHING


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_a_class_from_elsewhere_counts_by_its_file(
    module: Callable[[str], Any], way: Callable[[Any], Any]
) -> None:
    one, two = (foreign_code(way(module(source))) for source in (ONE, TWO))
    assert [name for name, _ in one] == [name for name, _ in two] == ["other.code"]
    assert one != two
    assert foreign_code(way(module(ONE))) == one


def test_the_models_class_counts_however_it_was_registered(
    module: Callable[[str], Any], model_class: Callable[[type], None]
) -> None:
    model_class(module(ONE).Other)
    assert [name for name, _ in foreign_code(config())] == ["other.code"]


def test_plugins_count_that_vllm_loads(
    module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module(ONE)
    plugin = EntryPoint("ours", "other.code:change", "vllm.general_plugins")
    monkeypatch.setattr(metadata, "entry_points", lambda group: [plugin] * (group == plugin.group))
    assert [name for name, _ in foreign_code(config())] == ["other.code"]
    monkeypatch.setenv("VLLM_PLUGINS", "theirs")
    assert foreign_code(config()) == NOTHING


def test_layers_of_transformers_count_by_its_version() -> None:
    ((name, version),) = foreign_code(config(model_config__architecture="TransformersForCausalLM"))
    assert (name, version) == ("transformers", metadata.version("transformers"))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Hugging Face cache with two commits of one repository that has only code."""
    repository = tmp_path / "hub" / "models--someone--code"
    for commit in COMMITS:
        snapshot = repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (snapshot / "modeling.py").write_text(f"class Foo: commit = {commit!r}\n")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMITS[0])
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    _forget("transformers_modules")
    yield tmp_path / "hub"
    _forget("transformers_modules")


def load(hub: Path, name: str, code_revision: str | None = None) -> Code:
    """Load a class as transformers does for ``auto_map``; return what code there is then."""
    _forget("transformers_modules")
    dynamic_module_utils.get_class_from_dynamic_module(
        name, "a/model", cache_dir=str(hub), code_revision=code_revision, local_files_only=True
    )
    return foreign_code(config())


def test_code_of_another_repository_counts_by_what_was_loaded(hub: Path) -> None:
    one, two = (load(hub, "someone/code--modeling.Foo", commit) for commit in COMMITS)
    assert [name for name, _ in one] == [name for name, _ in two] == ["modeling"]
    assert one != two
    assert load(hub, "someone/code--modeling.Foo") == one


def test_where_a_checkpoint_with_code_lies_does_not_matter(hub: Path) -> None:
    found = []
    for name in ("here", "there"):
        folder = hub / name
        folder.mkdir()
        (folder / "modeling.py").write_text("class Foo: pass\n")
        found.append(load(hub, f"{folder}--modeling.Foo"))
    assert found[0] == found[1] != NOTHING


def test_code_that_was_changed_meanwhile_is_a_doubt(
    module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    overridden = WAYS["override"](module(ONE))
    monkeypatch.setattr(foreign, "server_start_ns", lambda: 0)
    with pytest.raises(FileChangedError, match=r"code\.py was changed after"):
        foreign_code(overridden)
    assert read_worker(overridden).doubt == "code.py was changed after the engine had begun."


def test_code_that_no_file_has_is_a_doubt(module: Callable[[str], Any]) -> None:
    overridden = WAYS["override"](module(ONE))
    sys.modules["other.made"] = type(sys)("other.made")
    with pytest.raises(FileChangedError, match=r"'other\.made' is in no file"):
        foreign_code(overridden)


@pytest.mark.parametrize("name", ["__main__", "not.here"])
def test_a_class_that_came_without_its_module_is_a_doubt(
    model_class: Callable[[type], None], name: str
) -> None:
    # Pickled by its value, or of a script: what has that name in a worker is something else.
    model_class(type("Made", (), {"__module__": name}))
    with pytest.raises(FileChangedError, match=f"a class of '{name}' is in no file"):
        foreign_code(config())


def test_an_override_of_another_model_is_not_loaded_and_does_not_count() -> None:
    assert foreign_code(config(model_config__model_class_overrides={"L": "not.here:A"})) == NOTHING


def test_a_class_of_such_code_may_be_as_young_as_its_copy(
    hub: Path, model_class: Callable[[type], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "server_start_ns", lambda: 0)
    code = load(hub, "someone/code--modeling.Foo")
    (loaded,) = (each for name, each in sys.modules.items() if DYNAMIC.fullmatch(name))
    model_class(loaded.Foo)
    assert foreign_code(config()) == code != NOTHING
