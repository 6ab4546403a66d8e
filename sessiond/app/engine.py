"""``sessiond engine``: start vLLM with everything that sessiond needs.

It prepares a command line and becomes a small process that runs it: exit status and output are
vLLM's own, and so are signals, but for SIGTERM, which has the sessions stored first.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from sessiond.app import engine_start
from sessiond.app.drain_client import Drain
from sessiond.app.kvsize import context_kv_bytes
from sessiond.app.paths import (
    FLOOR_VARIABLE,
    default_key_file,
    default_store_root,
    free_space_floor_bytes,
)
from sessiond.app.vllm_options import option
from sessiond.connector.versions import require_supported_vllm
from sessiond.domain.errors import SessiondError
from sessiond.domain.ids import new_hex_id

_GIB = 1 << 30
#: The RAM tier holds this many full contexts, if the machine has the room.
_CONTEXTS_IN_RAM = 2
_RAM_TIER_WITHOUT_CONFIG_BYTES = 4 * _GIB
#: At most this part of what /dev/shm and memory have free now.
_SHARE_OF_FREE = 0.5
_CHUNK_TOKENS_CPU = 128  # one block of the CPU platform
_CHUNK_TOKENS_GPU = 256

_EPILOG = """
All options that are not listed here go to vLLM as they are.

On SIGTERM the daemon suspends the engine's sessions, the most valuable first, before vLLM is
stopped; without a daemon vLLM is stopped at once. Other signals go to vLLM as they are.

exit status: vLLM's own; 2 if the options or this vLLM version cannot be used.
"""


@dataclass(frozen=True)
class RamTier:
    """How large the RAM tier is made, and why."""

    size_bytes: int
    warning: str = ""


def run(arguments: Sequence[str]) -> NoReturn:
    """Run ``sessiond engine`` with *arguments*; never returns."""
    options, vllm_options = _parser().parse_known_args(arguments)
    if option(vllm_options, "--kv-transfer-config") is not None:
        _refuse("--kv-transfer-config is what this command makes; see --connector-setting")
    try:
        require_supported_vllm()
        ram_tier = _ram_tier(options, vllm_options)
    except (SessiondError, ValueError) as error:
        _refuse(str(error))
    if ram_tier.warning:
        sys.stderr.write(f"sessiond engine: {ram_tier.warning}\n")
    if options.print:
        command = command_line(options, vllm_options, ram_tier.size_bytes)
        sys.stdout.write(json.dumps(command) if options.json else shlex.join(command))
        sys.stdout.write("\n")
        sys.exit(0)
    launch = new_hex_id()
    command = command_line(options, vllm_options, ram_tier.size_bytes, launch)
    try:
        engine_start.start(command, Drain(options.drain_url, options.drain_deadline_s, launch))
    except OSError as error:
        _refuse(f"vLLM cannot be started: {error}")


def _refuse(message: str) -> NoReturn:
    sys.stderr.write(f"sessiond engine: {message}\n")
    sys.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sessiond engine",
        description="Start vLLM with sessiond's connector.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", help="model folder or name, as for vLLM")
    parser.add_argument(
        "--store-root",
        type=Path,
        default=default_store_root(),
        help="where snapshots are kept [env: SESSIOND_STORE_ROOT] (default: %(default)s)",
    )
    parser.add_argument(
        "--key-file",
        type=Path,
        help="the server key, made if missing [env: SESSIOND_KEY_FILE] "
        "(default: server.key beside the store root)",
    )
    parser.add_argument(
        "--ram-tier-bytes",
        type=int,
        help=f"size of the RAM tier (default: {_CONTEXTS_IN_RAM} full contexts, "
        "at most half of what /dev/shm and memory have free)",
    )
    parser.add_argument(
        "--chunk-tokens",
        type=int,
        help=f"tokens that move together, a multiple of vLLM's block size "
        f"(default: {_CHUNK_TOKENS_GPU}, {_CHUNK_TOKENS_CPU} on the CPU platform)",
    )
    parser.add_argument(
        "--engine-url",
        help="how sessiond reaches this engine (default: from vLLM's --host and --port)",
    )
    parser.add_argument(
        "--allow-weight-updates",
        action="store_true",
        help="keep snapshots although vLLM's development mode, sleep mode, weight transfer or "
        "LoRA updates could change weights in place; you promise that they do not",
    )
    parser.add_argument(
        "--connector-setting",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="one setting of the connector, such as codec=raw; may be repeated",
    )
    engine_start.add_options(parser)
    parser.add_argument(
        "--print", action="store_true", help="show the plain vLLM command instead of running it"
    )
    parser.add_argument("--json", action="store_true", help="with --print: as a JSON list")
    return parser


def command_line(
    options: argparse.Namespace, vllm_options: Sequence[str], ram_tier_bytes: int, launch: str = ""
) -> list[str]:
    """Return the vLLM command that serves the model with sessiond's connector.

    :param launch: by which the engine is found again among others
    """
    return [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        options.model,
        "--enable-prompt-tokens-details",
        "--kv-transfer-config",
        json.dumps(_kv_transfer_config(options, vllm_options, ram_tier_bytes, launch)),
        *vllm_options,
    ]


def _kv_transfer_config(
    options: argparse.Namespace, vllm_options: Sequence[str], ram_tier_bytes: int, launch: str
) -> dict[str, Any]:
    root = options.store_root.expanduser().absolute()
    settings = {
        "root": str(root),
        "key_file": str((options.key_file or default_key_file(root)).expanduser().absolute()),
        "url": options.engine_url or _url(vllm_options),
        "allow_weight_updates": options.allow_weight_updates,
        **({"launch": launch} if launch else {}),
        **_floor(),
        **dict(_setting(text) for text in options.connector_setting),
    }
    return {
        "kv_connector": "SessionConnector",
        "kv_connector_module_path": "sessiond.connector.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "spec_name": "SessionOffloadingSpec",
            "spec_module_path": "sessiond.connector.spec",
            "cpu_bytes_to_use": ram_tier_bytes,
            "block_size": options.chunk_tokens or _default_chunk_tokens(),
            "offload_prompt_only": False,
            "secondary_tiers": [{"type": "SnapshotTier", "module_path": "sessiond.connector.tier"}],
            "sessiond": settings,
        },
    }


def _floor() -> dict[str, int]:
    try:
        floor_bytes = free_space_floor_bytes()
    except ValueError:
        _refuse(f"{FLOOR_VARIABLE} is no whole number of bytes")
    return {} if floor_bytes is None else {"free_space_floor_bytes": floor_bytes}


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        _refuse(f"--connector-setting {text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _default_chunk_tokens() -> int:
    from vllm.platforms import current_platform  # noqa: PLC0415 - takes seconds to import

    return _CHUNK_TOKENS_CPU if current_platform.is_cpu() else _CHUNK_TOKENS_GPU


def _url(vllm_options: Sequence[str]) -> str:
    host = option(vllm_options, "--host") or "127.0.0.1"
    port = option(vllm_options, "--port") or "8000"
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _ram_tier(options: argparse.Namespace, vllm_options: Sequence[str]) -> RamTier:
    context_bytes = context_kv_bytes(Path(options.model), vllm_options)
    if options.ram_tier_bytes is not None:
        size_bytes = options.ram_tier_bytes
    else:
        wanted = _CONTEXTS_IN_RAM * context_bytes or _RAM_TIER_WITHOUT_CONFIG_BYTES
        size_bytes = min(wanted, int(_free_bytes() * _SHARE_OF_FREE))
    if size_bytes < context_bytes:
        return RamTier(
            size_bytes,
            f"the RAM tier ({size_bytes} bytes) is smaller than one full context "
            f"({context_bytes} bytes): long sessions move in several rounds. "
            "Free memory or enlarge /dev/shm, or give --ram-tier-bytes.",
        )
    return RamTier(size_bytes)


def _free_bytes() -> int:
    available = 0
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) << 10
    return min(available, shutil.disk_usage("/dev/shm").free)  # noqa: S108 - vLLM's place for it
