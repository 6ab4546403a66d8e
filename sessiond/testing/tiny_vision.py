"""A tiny checkpoint that sees images: random weights and the real model's tokenizer."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sessiond.testing.model import build_model

#: Changes whenever a checkpoint made by an older version of this module must be made anew.
_VERSION: Final = 1
_COMPLETE: Final = "config.json"
_TOKENIZER_FILES: Final = ("tokenizer_config.json", "chat_template.jinja")
#: A token that the real tokenizer never needs becomes the one that stands for an image.
_SPARE_TOKEN, IMAGE_TOKEN = "<file_sep>", "<image>"
_IMAGE_TOKEN_ID: Final = 5
IMAGE_PIXELS: Final = 56
#: What an image becomes, before the text.
IMAGE_TOKENS: Final = 32

_TEXT: Mapping[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 49_152,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4_096,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "tie_word_embeddings": False,
}
_VISION: Mapping[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": IMAGE_PIXELS,
    "patch_size": 14,
}
_QUERIES: Mapping[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "encoder_hidden_size": 128,
}


def build_tiny_vision_model(folder: Path) -> Path:
    """Build a BLIP-2 checkpoint over Llama below *folder* unless it is there; return its path.

    The weights are the same each time, and large, so that the output depends on the context.

    :raises FileNotFoundError: the package with the real model is not installed
    """
    target = folder / f"tiny-vision-{_VERSION}"
    if (target / _COMPLETE).is_file():
        return target
    real = build_model(folder)
    with tempfile.TemporaryDirectory(dir=folder) as building:
        _save(Path(building), real)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(building, target)
    return target


def _save(folder: Path, real: Path) -> None:
    import transformers as untyped  # noqa: PLC0415 - seconds to import, and only needed once

    transformers: Any = untyped
    for name in _TOKENIZER_FILES:
        shutil.copyfile(real / name, folder / name)
    tokens = (real / "tokenizer.json").read_text().replace(_SPARE_TOKEN, IMAGE_TOKEN)
    (folder / "tokenizer.json").write_text(tokens)
    size = {"height": IMAGE_PIXELS, "width": IMAGE_PIXELS}
    processor = transformers.Blip2Processor(
        transformers.BlipImageProcessorPil(size=size),
        transformers.AutoTokenizer.from_pretrained(folder),
        num_query_tokens=IMAGE_TOKENS,
    )
    _random_model(transformers).save_pretrained(folder)
    processor.save_pretrained(folder)


def _random_model(transformers: Any) -> Any:  # noqa: ANN401 - a module without types
    import torch  # noqa: PLC0415 - seconds to import, and only needed once

    config = transformers.Blip2Config(
        text_config=dict(_TEXT),
        vision_config=dict(_VISION),
        qformer_config=dict(_QUERIES),
        num_query_tokens=IMAGE_TOKENS,
        image_token_index=_IMAGE_TOKEN_ID,
    )
    model = transformers.Blip2ForConditionalGeneration(config).to(torch.bfloat16)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                gain = 4.0 if name.endswith(("q_proj.weight", "lm_head.weight")) else 1.5
                scale = 1.0 if "embed_tokens" in name else gain * parameter.shape[-1] ** -0.5
                parameter.normal_(0.0, scale)
    return model
