from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from sessiond.app import engine, supervisor
from sessiond.app.drain_client import Drain
from sessiond.app.engine import run
from sessiond.app.kvsize import context_kv_bytes
from sessiond.connector import scratch
from sessiond.connector.settings import ConnectorSettings

CONFIG = {
    "num_hidden_layers": 10,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 512,
    "max_position_embeddings": 1000,
}
#: 2 (K and V) x layers x KV heads x head size x bytes of a 16-bit value
TOKEN_BYTES = 2 * 10 * 2 * 64 * 2
CONTEXT_BYTES = 1000 * TOKEN_BYTES


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engine, "_free_bytes", lambda: 1 << 40)
    monkeypatch.setattr(engine, "_default_chunk_tokens", lambda: 256)
    monkeypatch.setenv("SESSIOND_STORE_ROOT", str(tmp_path / "store"))
    for name in ("KEY_FILE", "URL", "DRAIN_DEADLINE_S"):
        monkeypatch.delenv(f"SESSIOND_{name}", raising=False)


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """Return the command that --print shows."""
    with pytest.raises(SystemExit) as ended:
        run([*arguments, "--print", "--json"])
    assert ended.value.code == 0
    command: list[str] = json.loads(capsys.readouterr().out)
    return command


def transfer_config(command: list[str]) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(command[command.index("--kv-transfer-config") + 1])
    return config


def extra_config(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    extra: dict[str, Any] = transfer_config(printed(capsys, *arguments))[
        "kv_connector_extra_config"
    ]
    return extra


def settings(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    given: dict[str, Any] = extra_config(capsys, *arguments)["sessiond"]
    return given


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        run(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


# The command


def test_the_command_starts_vllm_in_this_environment(
    capsys: pytest.CaptureFixture[str], model: str
) -> None:
    command = printed(capsys, model)
    assert command[:5] == [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model,
    ]  # fmt: skip


def test_other_options_go_to_vllm_in_their_order(
    capsys: pytest.CaptureFixture[str], model: str
) -> None:
    ours = ["--chunk-tokens", "64", "--allow-weight-updates"]
    theirs = ["--max-model-len", "500", "--port=8001", "--enforce-eager"]
    assert printed(capsys, model, *theirs[:2], *ours, *theirs[2:])[-4:] == theirs


def test_the_floor_of_free_space_is_the_daemons(
    capsys: pytest.CaptureFixture[str], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "free_space_floor_bytes" not in settings(capsys, model)
    monkeypatch.setenv("SESSIOND_FREE_SPACE_FLOOR_BYTES", "4096")
    assert settings(capsys, model)["free_space_floor_bytes"] == 4096
    monkeypatch.setenv("SESSIOND_FREE_SPACE_FLOOR_BYTES", "much")
    assert "FREE_SPACE_FLOOR_BYTES" in refusal(capsys, model)


def test_the_printed_command_can_be_pasted(capsys: pytest.CaptureFixture[str], model: str) -> None:
    as_list = printed(capsys, model)
    with pytest.raises(SystemExit):
        run([model, "--print"])
    assert shlex.split(capsys.readouterr().out) == as_list


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str], dict[str, str]]]:
    """What this process was about to become: program, arguments, environment."""
    calls: list[tuple[str, list[str], dict[str, str]]] = []

    def execve(path: str, command: list[str], env: dict[str, str]) -> None:
        calls.append((path, command, env))
        raise SystemExit(0)

    monkeypatch.setattr("os.execve", execve)
    return calls


def without_launch(command: list[str]) -> tuple[list[str], str]:
    """Return a command as --print shows it, and what names its start."""
    at = command.index("--kv-transfer-config") + 1
    config = json.loads(command[at])
    launch = config["kv_connector_extra_config"]["sessiond"].pop("launch")
    return [*command[:at], json.dumps(config), *command[at + 1 :]], launch


def test_without_print_it_becomes_that_command_with_a_temporary_folder_of_its_own(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    become: list[tuple[str, list[str], dict[str, str]]],
) -> None:
    command = printed(capsys, model)
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # importing vLLM may set it
        dead = scratch.make()
        assert dead is not None
        os.close(dead.lock_fd)
        with pytest.raises(SystemExit):
            run([model, "--drain-deadline-s", "0"])
        (left,) = Path(folder).iterdir()
        ((path, became, env),) = become
        assert (path, without_launch(became)[0]) == (sys.executable, command)
        assert env["TMPDIR"] == str(left)
        assert left != dead.path
        assert env["TORCHINDUCTOR_CACHE_DIR"].startswith(f"{folder}/torchinductor_")
        assert env["PATH"] == os.environ["PATH"]


def test_somebody_watches_over_its_end(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    become: list[tuple[str, list[str], dict[str, str]]],
) -> None:
    command = printed(capsys, model)
    monkeypatch.setenv("SESSIOND_URL", "http://daemon:1")
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        for arguments in ([], ["--drain-url", "http://d:2", "--drain-deadline-s=7.5"]):
            with pytest.raises(SystemExit):
                run([model, *arguments])
    launches = set()
    for (_, became, _), url, deadline_s in zip(
        become, ("http://daemon:1", "http://d:2"), (20.0, 7.5), strict=True
    ):
        child, launch = without_launch(became[became.index("-m", 3) - 1 :])
        assert child == command
        assert became == supervisor.command_line(
            Drain(url, deadline_s, launch), became[-len(command) :]
        )
        launches.add(launch)
    assert len(launches) == 2


@pytest.mark.parametrize("text", ["-1", "4000", "soon"])
def test_a_wrong_deadline_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: str, text: str
) -> None:
    assert "seconds" in refusal(capsys, model, f"--drain-deadline-s={text}")
    monkeypatch.setenv("SESSIOND_DRAIN_DEADLINE_S", text)
    assert "seconds" in refusal(capsys, model)


def test_a_temporary_folder_too_deep_for_sockets_is_used_as_it_is_and_named(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    model: str,
    become: list[tuple[str, list[str], dict[str, str]]],
) -> None:
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    monkeypatch.setenv("TMPDIR", str(deep))
    with pytest.raises(SystemExit):
        run([model])
    assert become[0][2]["TMPDIR"] == str(deep)
    assert "Set TMPDIR to a shorter path" in capsys.readouterr().err
    assert list(deep.iterdir()) == []


def test_connector_spec_and_tier_can_be_found(
    capsys: pytest.CaptureFixture[str], model: str
) -> None:
    config = transfer_config(printed(capsys, model))
    extra = config["kv_connector_extra_config"]
    named = {
        config["kv_connector_module_path"]: config["kv_connector"],
        extra["spec_module_path"]: extra["spec_name"],
        extra["secondary_tiers"][0]["module_path"]: extra["secondary_tiers"][0]["type"],
    }
    for module, name in named.items():
        source = Path(engine.__file__).parents[2].joinpath(*module.split(".")).with_suffix(".py")
        assert f"class {name}(" in source.read_text()


def test_a_failed_load_is_recomputed(capsys: pytest.CaptureFixture[str], model: str) -> None:
    assert transfer_config(printed(capsys, model))["kv_load_failure_policy"] == "recompute"


def test_generated_tokens_are_kept_too(capsys: pytest.CaptureFixture[str], model: str) -> None:
    assert extra_config(capsys, model)["offload_prompt_only"] is False


# Settings


def test_the_connector_understands_its_settings(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    read = ConnectorSettings.from_extra_config(extra_config(capsys, model))
    assert read == ConnectorSettings(
        root=tmp_path / "store", key_file=tmp_path / "server.key", url="http://127.0.0.1:8000"
    )


def test_paths_are_absolute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: str, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    given = settings(capsys, model, "--store-root", "there", "--key-file", "~/key")
    assert given["root"] == str(tmp_path / "there")
    assert given["key_file"] == str(tmp_path / "home" / "key")


def test_the_key_file_lies_beside_the_store(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    given = settings(capsys, model, "--store-root", str(tmp_path / "a" / "store"))
    assert given["key_file"] == str(tmp_path / "a" / "server.key")


def test_settings_can_be_given_by_name(capsys: pytest.CaptureFixture[str], model: str) -> None:
    named = ["codec=raw", "job_deadline_s=5", 'raise_in=["a"]', "url=http://x/?a=b"]
    given = settings(capsys, model, *(f"--connector-setting={text}" for text in named))
    assert {name: given[name] for name in ("codec", "job_deadline_s", "raise_in", "url")} == {
        "codec": "raw", "job_deadline_s": 5, "raise_in": ["a"], "url": "http://x/?a=b",
    }  # fmt: skip


def test_a_setting_without_a_value_is_refused(
    capsys: pytest.CaptureFixture[str], model: str
) -> None:
    assert "NAME=VALUE" in refusal(capsys, model, "--connector-setting", "codec", "--print")


def test_the_chunk_size_is_the_platforms_or_the_given_one(
    capsys: pytest.CaptureFixture[str], model: str
) -> None:
    assert extra_config(capsys, model)["block_size"] == 256
    assert extra_config(capsys, model, "--chunk-tokens", "32")["block_size"] == 32


def test_weight_updates_are_allowed_only_if_asked_for(
    capsys: pytest.CaptureFixture[str], model: str
) -> None:
    assert settings(capsys, model)["allow_weight_updates"] is False
    assert settings(capsys, model, "--allow-weight-updates")["allow_weight_updates"] is True


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ([], "http://127.0.0.1:8000"),
        (["--port", "8001"], "http://127.0.0.1:8001"),
        (["--port=8001"], "http://127.0.0.1:8001"),
        (["--port", "1", "--port", "2"], "http://127.0.0.1:2"),
        (["--host", "10.0.0.5", "--port=9"], "http://10.0.0.5:9"),
        (["--host", "0.0.0.0"], "http://127.0.0.1:8000"),
        (["--host=::"], "http://127.0.0.1:8000"),
        (["--host", "fd00::1"], "http://[fd00::1]:8000"),
        (["--engine-url", "https://gpu7/"], "https://gpu7/"),
        (["--served-model-name", "--port"], "http://127.0.0.1:8000"),
    ],
)
def test_the_engines_url(
    capsys: pytest.CaptureFixture[str], model: str, options: list[str], url: str
) -> None:
    assert settings(capsys, model, *options)["url"] == url


# Refused


@pytest.mark.parametrize("spelling", [["--kv-transfer-config", "{}"], ["--kv_transfer_config={}"]])
def test_another_connector_is_refused(
    capsys: pytest.CaptureFixture[str], model: str, spelling: list[str]
) -> None:
    assert "--connector-setting" in refusal(capsys, model, *spelling)


def test_an_untested_vllm_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.99.0")
    assert "0.99.0" in refusal(capsys, model, "--print")


@pytest.mark.parametrize(
    "arguments", [[], ["m", "--chunk-tokens", "many"], ["m", "--chunk-tokens"]]
)
def test_wrong_options_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert "usage:" in refusal(capsys, *arguments)


# The RAM tier


def test_it_holds_two_contexts(capsys: pytest.CaptureFixture[str], model: str) -> None:
    assert extra_config(capsys, model)["cpu_bytes_to_use"] == 2 * CONTEXT_BYTES


def test_it_takes_half_of_what_is_free(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setattr(engine, "_free_bytes", lambda: 3 * CONTEXT_BYTES)
    assert extra_config(capsys, model)["cpu_bytes_to_use"] == 3 * CONTEXT_BYTES // 2


def test_a_given_size_counts(capsys: pytest.CaptureFixture[str], model: str) -> None:
    extra = extra_config(capsys, model, "--ram-tier-bytes", "123456789")
    assert extra["cpu_bytes_to_use"] == 123456789


def test_without_a_config_it_is_four_gib(capsys: pytest.CaptureFixture[str]) -> None:
    assert extra_config(capsys, "someone/model")["cpu_bytes_to_use"] == 4 << 30


@pytest.mark.parametrize(
    ("size_bytes", "warned"), [(CONTEXT_BYTES - 1, True), (CONTEXT_BYTES, False)]
)
def test_less_than_a_context_is_warned_of(
    capsys: pytest.CaptureFixture[str], model: str, *, size_bytes: int, warned: bool
) -> None:
    with pytest.raises(SystemExit):
        run([model, "--print", "--ram-tier-bytes", str(size_bytes)])
    assert ("several rounds" in capsys.readouterr().err) == warned


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ([], 1000),
        (["--max-model-len", "500"], 500),
        (["--max-model-len=500"], 500),
        (["--max_model_len", "500"], 500),
        (["--max-model-len", "500", "--max-model-len", "600"], 600),
        (["--max-model-len", "8k"], 8000),
        (["--max-model-len", "8K"], 8192),
        (["--max-model-len", "1.5k"], 1500),
        (["--max-model-len", "auto"], 1000),
        (["--max-model-len", "-1"], 1000),
        (["--max-model-len"], 1000),
    ],
)
def test_the_length_of_a_context(model: str, options: list[str], tokens: int) -> None:
    assert context_kv_bytes(Path(model), options) == tokens * TOKEN_BYTES


@pytest.mark.parametrize(
    ("options", "factor"),
    [
        (["--kv-cache-dtype", "fp8"], 0.5),
        (["--kv-cache-dtype=fp8_e5m2"], 0.5),
        (["--kv-cache-dtype", "auto"], 1),
        (["--dtype", "float32"], 2),
        (["--dtype", "float32", "--kv-cache-dtype", "fp8"], 0.5),
        (["--dtype", "bfloat16"], 1),
    ],
)
def test_the_size_of_a_value(model: str, options: list[str], factor: float) -> None:
    assert context_kv_bytes(Path(model), options) == CONTEXT_BYTES * factor


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({"head_dim": 128}, 2),
        ({"num_key_value_heads": None}, 4),
        ({"num_key_value_heads": 1}, 0.5),
        ({"text_config": {"num_hidden_layers": 20}}, 2),
        ({"num_hidden_layers": None}, 0),
        ({"max_position_embeddings": None}, 0),
    ],
    ids=str,
)
def test_the_checkpoints_config(model: str, changes: dict[str, Any], factor: float) -> None:
    Path(model, "config.json").write_text(json.dumps({**CONFIG, **changes}))
    assert context_kv_bytes(Path(model), []) == CONTEXT_BYTES * factor


@pytest.mark.parametrize("content", ["", "no json", "[]", "5"])
def test_a_config_that_cannot_be_read_tells_nothing(model: str, content: str) -> None:
    Path(model, "config.json").write_text(content)
    assert context_kv_bytes(Path(model), []) == 0
