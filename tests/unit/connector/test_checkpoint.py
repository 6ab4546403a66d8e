from __future__ import annotations

from pathlib import Path

import pytest

from sessiond.connector.checkpoint import (
    Checkpoint,
    code_files,
    find_checkpoint,
    quantization_files,
    tokenizer_files,
    weight_files,
)
from sessiond.domain.errors import UnsupportedEngineError

COMMITS = ("a" * 40, "b" * 40)


def names(paths: list[Path]) -> list[str]:
    return sorted(path.name for path in paths)


def with_files(folder: Path, *found: str) -> Path:
    for name in found:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A Hugging Face cache with two commits of one model; ``main`` is the first."""
    cached = tmp_path / "hub" / "models--owner--model"
    for commit in COMMITS:
        with_files(cached / "snapshots" / commit, "config.json", "model.safetensors")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(COMMITS[0])
    return tmp_path / "hub"


def test_every_weight_file_counts_whichever_is_loaded(tmp_path: Path) -> None:
    found = ("model-1.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
    model = Checkpoint(with_files(tmp_path, *found, "config.json"))
    assert names(weight_files(model)) == sorted(found)


@pytest.mark.parametrize("name", ["m.bin", "m.pt", "m.pth", "m.gguf"])
def test_other_weights_are_found(tmp_path: Path, name: str) -> None:
    assert weight_files(Checkpoint(with_files(tmp_path, name))) == [tmp_path / name]


def test_one_file_is_a_model(tmp_path: Path) -> None:
    model = Checkpoint(with_files(tmp_path, "m.gguf") / "m.gguf")
    assert weight_files(model) == [tmp_path / "m.gguf"]
    assert model.folder == tmp_path


def test_a_folder_called_like_weights_is_none(tmp_path: Path) -> None:
    (tmp_path / "optimizer.safetensors").mkdir()
    model = Checkpoint(with_files(tmp_path, "a.safetensors"))
    assert names(weight_files(model)) == ["a.safetensors"]


@pytest.mark.parametrize("found", [(), ("config.json",), ("model.safetensors.index.json",)])
def test_a_model_without_weights_is_refused(tmp_path: Path, found: tuple[str, ...]) -> None:
    with pytest.raises(UnsupportedEngineError, match="holds no weight files"):
        weight_files(Checkpoint(with_files(tmp_path, *found)))


def test_tokenizer_files_are_those_that_are_there(tmp_path: Path) -> None:
    others = ("README.md", "tokenizer_config.json", "chat_template.jinja")
    found = ("tokenizer.json", "vocab.json", "tokenizer.model.v3", "qwen.tiktoken")
    assert names(tokenizer_files(with_files(tmp_path, *found, *others))) == sorted(found)


def test_code_is_found_at_any_depth(tmp_path: Path) -> None:
    with_files(tmp_path, "modeling.py", "parts/rope.py", "config.json")
    assert names(code_files(tmp_path)) == ["modeling.py", "rope.py"]


def test_quantization_has_side_files(tmp_path: Path) -> None:
    with_files(tmp_path, "hf_quant_config.json", "config.json")
    assert names(quantization_files(tmp_path)) == ["hf_quant_config.json"]


def test_a_folder_has_no_revision(tmp_path: Path) -> None:
    assert find_checkpoint(str(tmp_path), None, None) == Checkpoint(tmp_path)
    assert Checkpoint(tmp_path).revision == ""


def test_a_snapshot_of_the_hub_has_its_commit(hub: Path) -> None:
    folder = hub / "models--owner--model" / "snapshots" / COMMITS[1]
    assert Checkpoint(folder).revision == COMMITS[1]


@pytest.mark.parametrize(("revision", "commit"), [(None, COMMITS[0]), (COMMITS[1], COMMITS[1])])
def test_a_name_is_resolved_to_a_commit(hub: Path, revision: str | None, commit: str) -> None:
    found = find_checkpoint("owner/model", revision, str(hub), commit)
    assert found.revision == commit
    assert names(weight_files(found)) == ["model.safetensors"]


def test_a_model_that_is_not_here_is_refused(hub: Path) -> None:
    with pytest.raises(UnsupportedEngineError, match="are not on this machine"):
        find_checkpoint("owner/other", None, str(hub))


def test_a_name_that_means_another_commit_by_now_is_noticed(hub: Path) -> None:
    (hub / "models--owner--model" / "refs" / "main").write_text(COMMITS[1])
    found = find_checkpoint("owner/model", None, str(hub), COMMITS[0])
    assert found.doubt == "owner/model got another revision while the engine started"
    assert not find_checkpoint("owner/model", None, str(hub), COMMITS[1]).doubt


def test_a_name_is_refused_where_vllm_asks_modelscope(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", "1")
    with pytest.raises(UnsupportedEngineError, match=r"VLLM_USE_MODELSCOPE .* 'owner/model'"):
        find_checkpoint("owner/model", None, str(hub))
    assert find_checkpoint(str(tmp_path), None, None) == Checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["s3://bucket/model", "gs://b/m", "owner/model:Q4_K_M", "a/b/c"])
def test_what_is_no_name_of_the_hub_is_refused(hub: Path, name: str) -> None:
    with pytest.raises(UnsupportedEngineError, match="are not on this machine"):
        find_checkpoint(name, None, str(hub))
