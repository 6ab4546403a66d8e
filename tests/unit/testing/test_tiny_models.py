from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sessiond.testing.model import MODEL_NAME
from sessiond.testing.tiny_models import TINY_MODELS, build_tiny_model

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder in which the real model seems to be built already."""
    real = tmp_path / MODEL_NAME
    real.mkdir()
    for name in ("config.json", *TOKENIZER_FILES):
        (real / name).write_text(f"the real {name}")
    return tmp_path


def files(model: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in model.iterdir()}


def test_a_model_is_built_once_and_always_the_same(models: Path) -> None:
    model = build_tiny_model(models, "llama")
    first = files(model)
    built = (model / "model.safetensors").stat()
    build_tiny_model(models, "llama")
    assert (model / "model.safetensors").stat() == built
    (model / "config.json").unlink()  # what a half deleted one looks like
    random = torch.random.get_rng_state()

    again = files(build_tiny_model(models, "llama"))

    assert again == first
    assert torch.equal(torch.random.get_rng_state(), random)
    assert {name: first[name].decode() for name in TOKENIZER_FILES} == {
        name: f"the real {name}" for name in TOKENIZER_FILES
    }


def test_only_known_models_are_built(models: Path) -> None:
    with pytest.raises(KeyError):
        build_tiny_model(models, "gpt-7")
    assert "gpt-7" not in TINY_MODELS
    assert [path.name for path in models.iterdir()] == [MODEL_NAME]
