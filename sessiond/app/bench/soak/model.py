"""The model of a soak: the demo's, with a fifth of its layers.

It talks nonsense, quickly, and each of its tokens depends on all that came before: with the KV
of another text in one chunk, three of four tokens of a reply are others. The whole model takes
five times as long for each turn, and notices less.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

from sessiond.testing.model import MODEL_NAME, build_model

_LAYERS: Final = (0, 1, 2, 27, 28, 29)
SHORT_NAME: Final = f"{MODEL_NAME}-{len(_LAYERS)}-layers"
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_LAYER_OF: Final = re.compile(r"(?<=^model\.layers\.)\d+")


def short_model(folder: Path) -> Path:
    """Build the checkpoint below *folder* unless it is there already; return its path.

    :raises FileNotFoundError: the demo's model is not installed
    """
    target = folder / SHORT_NAME
    if (target / _CONFIG).is_file():
        return target
    whole = build_model(folder)
    with tempfile.TemporaryDirectory(dir=folder) as building:
        made = Path(shutil.copytree(whole, Path(building) / "made"))
        _shorten(made)
        made.rename(target)
    return target


def _shorten(model: Path) -> None:
    from safetensors.torch import load_file, save_file  # noqa: PLC0415 - seconds to import

    path = model / _CONFIG
    config = json.loads(path.read_text())
    config["num_hidden_layers"] = len(_LAYERS)
    if "layer_types" in config:
        config["layer_types"] = [config["layer_types"][layer] for layer in _LAYERS]
    path.write_text(json.dumps(config, indent=2))
    tensors = load_file(model / _WEIGHTS)
    kept = {new: tensor for name, tensor in tensors.items() if (new := kept_as(name))}
    save_file(kept, model / _WEIGHTS, metadata={"format": "pt"})


def kept_as(name: str) -> str:
    """Return a tensor's name in the short model; empty: it has none."""
    found = _LAYER_OF.search(name)
    if found is None:
        return name
    layer = int(found[0])
    return _LAYER_OF.sub(str(_LAYERS.index(layer)), name) if layer in _LAYERS else ""
