"""Where a model's files lie, and which of them decide what."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from sessiond.domain.errors import UnsupportedEngineError

#: Files that decide what the weights are.
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_INDEX_SUFFIX = ".index.json"
#: Side files in which quantized checkpoints describe themselves.
QUANTIZATION_FILES = (
    "hf_quant_config.json",
    "quant_config.json",
    "quantization_config.json",
    "quantize_config.json",
    "torchao_config.json",
)
#: Files that decide which tokens a text becomes; ``tokenizer_config.json`` and
#: ``special_tokens_map.json`` are read, not digested: see :mod:`sessiond.connector.prompts`.
_TOKENIZER_PATTERNS = (
    "tokenizer.json",
    "tokenizer.model*",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tekken*.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "*.tiktoken",
    "tokenization*.py",
)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Checkpoint:
    """A model, or a tokenizer, on this machine."""

    path: Path  #: a folder, or one file
    doubt: str = ""  #: why the engine may have loaded another one; empty if it has not

    @property
    def folder(self) -> Path:
        """The folder that holds its files."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def revision(self) -> str:
        """The commit that a Hugging Face cache names; empty for files that lie elsewhere."""
        folder = self.folder.resolve()
        cached = folder.parent.name == "snapshots"
        cached = cached and folder.parent.parent.name.startswith("models--")
        return folder.name if cached and _COMMIT.fullmatch(folder.name) else ""


def find_checkpoint(
    name: str, revision: str | None, download_folder: str | None, loaded_commit: str | None = None
) -> Checkpoint:
    """Return a local checkpoint, or the one in the Hugging Face cache.

    :param loaded_commit: the commit from which the engine has its configuration, if it knows
    :raises UnsupportedEngineError: it is not on this machine, or not in that cache
    """
    path = Path(name)
    if path.exists():
        return Checkpoint(path.absolute())
    if names_are_modelscopes():
        raise UnsupportedEngineError(
            f"VLLM_USE_MODELSCOPE has vLLM load {name!r} from ModelScope, whose cache sessiond "
            "does not read. Start the engine with the path of the downloaded folder instead."
        )
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - only for models by name

    try:
        found = snapshot_download(
            name, revision=revision, cache_dir=download_folder, local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise UnsupportedEngineError(
            f"The files of the model {name!r} are not on this machine, so sessiond cannot tell "
            "which weights computed its KV."
        ) from error
    checkpoint = Checkpoint(Path(found).absolute())
    if loaded_commit and checkpoint.revision not in ("", loaded_commit):
        return replace(checkpoint, doubt=f"{name} got another revision while the engine started")
    return checkpoint


def names_are_modelscopes() -> bool:
    """Whether vLLM takes what has a name instead of a path from ModelScope: a repository there may
    have the name of another one on the Hugging Face Hub."""
    from vllm import envs  # noqa: PLC0415 - only for models by name

    return bool(envs.VLLM_USE_MODELSCOPE)


def weight_files(model: Checkpoint) -> list[Path]:
    """Return the files that hold the weights.

    :raises UnsupportedEngineError: there is none
    """
    if model.path.is_file():
        return [model.path]
    found = [path for path in model.path.iterdir() if path.is_file()]
    weights = [path for path in found if path.suffix in WEIGHT_SUFFIXES]
    if not weights:
        raise UnsupportedEngineError(
            f"The model folder {model.path.name!r} holds no weight files, so sessiond cannot tell "
            "which weights computed its KV."
        )
    # All of them, whichever the load format takes: a needless recompute is no wrong token. An
    # index decides which of them counts where two hold the same tensor.
    return weights + [path for path in found if path.name.endswith(_INDEX_SUFFIX)]


def code_files(folder: Path) -> list[Path]:
    """Return the code that a checkpoint brings along (``trust_remote_code``)."""
    return [path for path in folder.rglob("*.py") if path.is_file()]


def quantization_files(folder: Path) -> list[Path]:
    """Return the side files that describe how the weights are quantized."""
    return _present(folder, QUANTIZATION_FILES)


def tokenizer_files(folder: Path) -> list[Path]:
    """Return the tokenizer's files."""
    return _present(folder, _TOKENIZER_PATTERNS)


def _present(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    found = {path for pattern in patterns for path in folder.glob(pattern)}
    return sorted(path for path in found if path.is_file())
