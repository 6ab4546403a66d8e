"""The compose file against the facts that decide whether it works, and for whom."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sessiond.app.config import ENV_PREFIX, Settings
from sessiond.app.drain_client import TOKEN_VARIABLE, URL_VARIABLE
from sessiond.app.engine import _parser

_ROOT = Path(__file__).parents[3]
_FILE = _ROOT / "docker" / "compose.yaml"
_SERVICES = ("engine", "sessiond")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(_FILE.read_text())
    return loaded


@pytest.fixture(params=_SERVICES)
def service(request: pytest.FixtureRequest, compose: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = compose["services"][request.param]
    return found


def _filled(value: str) -> str:
    """Return *value* with every variable set to itself, or to its default."""
    return re.sub(r"\$\{(\w+)(?::[-?]([^}]*))?\}", lambda found: f"{found[1]}-0123456789", value)


def test_there_are_the_engine_and_the_daemon(compose: dict[str, Any]) -> None:
    assert tuple(compose["services"]) == _SERVICES


def test_the_images_are_built_from_files_that_exist(service: dict[str, Any]) -> None:
    context = (_FILE.parent / service["build"]["context"]).resolve()
    assert context == _ROOT
    assert (context / service["build"]["dockerfile"]).is_file()
    assert "image" not in service


def test_both_share_store_key_and_registry_through_one_volume(compose: dict[str, Any]) -> None:
    assert "state" in compose["volumes"]
    for service in compose["services"].values():
        assert "state:/var/lib/sessiond" in service["volumes"]
        assert "SESSIOND_STORE_ROOT" not in service["environment"]  # the images say it, equally
        assert "SESSIOND_KEY_FILE" not in service["environment"]
        assert "user" not in service


def test_every_named_volume_is_declared(compose: dict[str, Any]) -> None:
    used = {
        volume.partition(":")[0]
        for service in compose["services"].values()
        for volume in service["volumes"]
    }
    assert used == set(compose["volumes"])


def test_nothing_more_is_allowed_than_needed(service: dict[str, Any]) -> None:
    assert not {"privileged", "cap_add", "ipc", "pid", "network_mode", "devices"} & set(service)
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_ports_are_published_to_this_machine_only(service: dict[str, Any]) -> None:
    assert service["ports"]
    for port in service["ports"]:
        assert re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port), port


def test_health_is_asked_where_the_image_asks(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        image = (_ROOT / service["build"]["dockerfile"]).read_text()
        asked = service["healthcheck"]["test"]
        assert asked[0] == "CMD", name
        assert f"CMD {json.dumps(asked[1:])}" in image, name


def test_every_variable_is_a_setting(service: dict[str, Any]) -> None:
    ours = [name for name in service["environment"] if name.startswith(ENV_PREFIX)]
    settings = {f"{ENV_PREFIX}{name.upper()}" for name in Settings.model_fields}
    assert set(ours) <= settings | {URL_VARIABLE, TOKEN_VARIABLE}


def test_the_daemon_starts_with_these_settings(
    compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in compose["services"]["sessiond"]["environment"].items():
        monkeypatch.setenv(name, _filled(value))
    settings = Settings(store_root=tmp_path / "store")
    assert settings.host == "0.0.0.0"
    assert list(settings.tokens.values()) == ["default"]
    assert settings.engines == ("http://engine:8000",)
    assert compose["services"]["sessiond"]["ports"] == [
        f"127.0.0.1:{settings.port}:{settings.port}"
    ]
    grace_s = int(compose["services"]["sessiond"]["stop_grace_period"].removesuffix("s"))
    # Calls get the grace, then the operations get it again.
    assert grace_s > 2 * settings.shutdown_grace_s


def test_the_token_and_the_model_have_no_default() -> None:
    for name in ("SESSIOND_TOKEN", "MODEL"):
        assert re.search(rf"\$\{{{name}:\?[^}}]+\}}", _FILE.read_text()), name


def test_the_engine_is_found_under_the_name_that_it_announces(compose: dict[str, Any]) -> None:
    command = [_filled(part) for part in compose["services"]["engine"]["command"]]
    options, vllm_options = _parser().parse_known_args(command)
    assert options.engine_url == compose["services"]["sessiond"]["environment"]["SESSIOND_ENGINES"]
    assert vllm_options == ["--host=0.0.0.0", "--port=8000"]


def test_a_stop_drains_the_engine_while_the_daemon_is_there(compose: dict[str, Any]) -> None:
    engine, daemon = (compose["services"][name] for name in _SERVICES)
    assert engine["depends_on"] == ["sessiond"]
    assert engine["environment"][URL_VARIABLE] == f"http://sessiond:{_port(daemon)}"
    options, _ = _parser().parse_known_args([_filled(part) for part in engine["command"]])
    assert engine["stop_grace_period"] == "1m"
    assert options.drain_deadline_s <= 30


def _port(service: dict[str, Any]) -> str:
    return str(service["environment"]["SESSIOND_PORT"])


def test_the_engine_has_a_gpu_and_room_for_the_ram_tier(compose: dict[str, Any]) -> None:
    engine = compose["services"]["engine"]
    (device,) = engine["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert re.fullmatch(r"\$\{ENGINE_SHM_SIZE:-\d+gb\}", engine["shm_size"])
    assert engine["init"] is True
