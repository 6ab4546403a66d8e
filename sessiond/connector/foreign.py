"""Code from elsewhere than vLLM that computes in a worker: of checkpoints and of other repositories
(``trust_remote_code``), of plugins, and of classes that options name.

What was loaded is asked, not what should have been: whichever option, revision or cache it came
by, it is among the process's modules. So this runs in the worker, once the model is there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessiond.connector.contents import Stamp, hash_file
from sessiond.connector.layers import Code
from sessiond.connector.loaded import is_changed_since, server_start_ns
from sessiond.connector.modelconfig import has_foreign_layers
from sessiond.domain.errors import FileChangedError

if TYPE_CHECKING:
    from types import ModuleType

    from vllm.config import VllmConfig

#: The package below which transformers puts the code of checkpoints and other repositories.
_DYNAMIC = "transformers_modules"
#: The library whose own layers vLLM takes for models that it does not know.
_LIBRARY = "transformers"
_PLUGIN_GROUPS = ("vllm.general_plugins", "vllm.platform_plugins")
#: Packages that other fields of the fingerprint tell.
_OWN = frozenset({"vllm", "torch", "sessiond"})
#: Where a script's classes are; in a worker, something else has that name.
_SCRIPT = "__main__"


def foreign_code(vllm_config: VllmConfig) -> Code:
    """Return what was loaded, each module by its name and the digest of its file.

    :raises FileChangedError: a file may not be what was loaded, or there is none
    :raises OSError: one cannot be read
    """
    classes = {each.__module__ for each in _classes(vllm_config)}
    for name in classes - sys.modules.keys() | classes & {_SCRIPT}:
        raise FileChangedError(f"The code of a class of {name!r} is in no file.")
    packages = {_package(name) for name in (*classes, *_named(vllm_config), *_plugins())}
    found = {*_code_of(packages - _OWN - {_DYNAMIC}), *_dynamic_code()}
    if has_foreign_layers(vllm_config.model_config):
        found.add((_LIBRARY, metadata.version(_LIBRARY)))
    return frozenset(found)


def _classes(vllm_config: VllmConfig) -> Iterator[type[Any]]:
    """Yield the classes that compute."""
    from vllm.model_executor.model_loader.utils import get_model_cls  # noqa: PLC0415 - slow

    yield get_model_cls(vllm_config.model_config)
    if vllm_config.quant_config is not None:
        yield type(vllm_config.quant_config)
    for layer in vllm_config.compilation_config.static_forward_context.values():
        yield type(layer)
        if hasattr(layer, "get_attn_backend"):
            yield layer.get_attn_backend()


def _named(vllm_config: VllmConfig) -> Iterator[str]:
    """Yield what options name that may compute: modules, or what is in them."""
    options, compilation = vllm_config.parallel_config, vllm_config.compilation_config
    yield from vllm_config.model_config.model_class_overrides.values()
    yield from (options.worker_cls, options.worker_extension_cls)
    passes: Iterable[Any] = (compilation.backend, *compilation.inductor_passes.values())
    # torch's own compilers have plain names; in Python, a pass may be the function itself.
    names = (each if isinstance(each, str) else each.__module__ for each in passes)
    yield from (name for name in names if "." in name)


def _plugins() -> Iterator[str]:
    """Yield the modules of the plugins that vLLM loads in every process: they may replace
    anything."""
    from vllm import envs  # noqa: PLC0415 - beside what reads it

    allowed = envs.VLLM_PLUGINS
    for group in _PLUGIN_GROUPS:
        for plugin in metadata.entry_points(group=group):
            if allowed is None or plugin.name in allowed:
                yield plugin.module


def _code_of(packages: set[str]) -> Iterator[tuple[str, str]]:
    began_ns = server_start_ns()
    for name, path in _files(packages):
        if is_changed_since(path, began_ns):
            raise FileChangedError(f"{path.name} was changed after the engine had begun.")
        yield name, _digest(path)


def _dynamic_code() -> Iterator[tuple[str, str]]:
    # transformers copies these files as the engine starts, into folders that are called like the
    # checkpoint's; empty ones only make packages of folders.
    for name, path in _files({_DYNAMIC}):
        if path.stat().st_size:
            yield name.rpartition(".")[2], _digest(path)


def _files(packages: set[str]) -> Iterator[tuple[str, Path]]:
    for name, module in list(sys.modules.items()):  # another thread may import something
        if _package(name) in packages and not _is_folder(module):
            yield name, _file(name, module)


def _is_folder(module: ModuleType) -> bool:
    return getattr(module, "__file__", None) is None and hasattr(module, "__path__")


def _file(name: str, module: ModuleType) -> Path:
    file = getattr(module, "__file__", None)
    if file is None:
        raise FileChangedError(f"The code of the module {name!r} is in no file.")
    return Path(file)


def _package(name: str) -> str:
    return name.partition(":")[0].partition(".")[0]


def _digest(path: Path) -> str:
    return hash_file(path, Stamp.of(path.stat()), ["blake3"])["blake3"]
