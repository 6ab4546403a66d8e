"""What the API server beside this engine was told: its chat template and its LoRA adapters.

vLLM tells the engine's process nothing of them, but starts it (by fork or by spawn) with the
command line of the server, and its own parser reads that.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from sessiond.connector.guard import guarded
from sessiond.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

#: How options begin that matter here. Building vLLM's parser takes half a second: without one of
#: them on the line it would only find defaults.
_TELLING = ("--chat", "--coh", "--config", "--default", "--lora")
#: Where vLLM's reading of ``--chat-template`` is: since 0.32, and before.
_TEMPLATE_MODULES = ("vllm.renderers.chat_utils", "vllm.entrypoints.chat_utils")
#: An option of its own that vLLM hands to the template like one of the default arguments.
_COHERE_FORMAT = "cohere_format"
#: The programs that are vLLM's server, by the end of their path, and what follows there.
_SERVERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("vllm/entrypoints/openai/api_server.py", ()),
    ("vllm/entrypoints/launchers/api_server/entry.py", ()),
    ("vllm/entrypoints/cli/main.py", ("serve",)),
    ("/vllm", ("serve",)),
)


@dataclass(frozen=True)
class LoraModule:
    """One adapter of ``--lora-modules``."""

    name: str  #: that requests give as their model
    path: str  #: as it was given: a folder or a name on the Hugging Face Hub
    fused_experts: bool = False  #: how the weights of its experts lie in the files


@dataclass(frozen=True)
class Frontend:
    """Options of the API server that decide what the engine is asked."""

    chat_template: str | None = None  #: the template itself; ``None``: the tokenizer's
    chat_template_content_format: str = "auto"
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)  #: the default ones
    lora_modules: tuple[LoraModule, ...] = ()


@guarded(Frontend())
def read_frontend(argv: Sequence[str] | None = None) -> Frontend:
    """Return what the server's command line says; defaults if no such server started us.

    :param argv: the command line with the program's name, by default this process's own
    """
    options = server_options(sys.argv if argv is None else argv)
    if not any(option.replace("_", "-").startswith(_TELLING) for option in options):
        return Frontend()
    parser = _parser()
    # Its default is not told apart from a line without options, for which no parser is made.
    default_format = parser.get_default(_COHERE_FORMAT)
    return _understood(parser.parse_args(options), default_format)


def server_options(argv: Sequence[str]) -> list[str]:
    """Return the options of vLLM's server; none if *argv* started another program."""
    program = Path(argv[0]).as_posix() if argv else ""
    for ending, words in _SERVERS:
        if f"/{program}".endswith(ending) and tuple(argv[1 : 1 + len(words)]) == words:
            return list(argv[1 + len(words) :])
    return []


def _parser() -> ArgumentParser:
    # Imported where they are needed: a library that only runs the engine never does.
    from vllm.entrypoints.launchers.cli_args import make_arg_parser  # noqa: PLC0415 - see above
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415 - see above

    class Parser(FlexibleArgumentParser):
        def __init__(self) -> None:
            super().__init__(add_help=False)  # type: ignore[no-untyped-call]

        def error(self, message: str) -> NoReturn:
            raise ConfigurationError(f"The server's command line was not understood: {message}")

        def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
            raise ConfigurationError(f"Its parser ended with {status}: {message}")

    parser: ArgumentParser = make_arg_parser(Parser())
    return parser


def _understood(parsed: Namespace, default_format: str | None) -> Frontend:
    kwargs = dict(parsed.default_chat_template_kwargs or {})
    cohere_format = getattr(parsed, _COHERE_FORMAT, None)
    if cohere_format != default_format:
        kwargs.setdefault(_COHERE_FORMAT, cohere_format)
    return Frontend(
        chat_template=_template(parsed.chat_template),
        chat_template_content_format=parsed.chat_template_content_format,
        chat_template_kwargs=kwargs,
        lora_modules=tuple(
            LoraModule(lora.name, lora.path, bool(getattr(lora, "is_3d_lora_weight", False)))
            for lora in parsed.lora_modules or ()
        ),
    )


def _template(given: str | None) -> str | None:
    """Return the template that ``--chat-template`` means, as vLLM does."""
    if given is None:
        return None
    for name in _TEMPLATE_MODULES:
        with contextlib.suppress(ImportError):
            loaded: str | None = importlib.import_module(name).load_chat_template(given)
            return loaded
    raise ConfigurationError("This vLLM has no load_chat_template where it is known to be.")
