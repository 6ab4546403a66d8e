"""The Kubernetes example against the code that has to understand it, and its own times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sessiond.app import drain
from sessiond.app.config import Settings
from sessiond.app.drain_client import DEFAULT_URL, TOKEN_VARIABLE
from sessiond.app.engine import _parser

_ROOT = Path(__file__).parents[3]
#: vLLM's own end, with a large model, and some for the daemon's.
_OTHER_ENDS_S = 60


@pytest.fixture(scope="module")
def documents() -> dict[str, dict[str, Any]]:
    loaded = yaml.safe_load_all((_ROOT / "docker" / "kubernetes.yaml").read_text())
    return {document["kind"]: document for document in loaded}


@pytest.fixture(scope="module")
def pod(documents: dict[str, dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = documents["Deployment"]["spec"]["template"]["spec"]
    return spec


@pytest.fixture(scope="module")
def engine(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["containers"]
    return dict(container)


@pytest.fixture(scope="module")
def daemon(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["initContainers"]
    return dict(container)


def pre_stop(engine: dict[str, Any]) -> Any:  # noqa: ANN401 - parsed options
    program, name, *arguments = engine["lifecycle"]["preStop"]["exec"]["command"]
    assert (program, name) == ("sessiond", "drain")
    return drain._parser().parse_args(arguments)


def test_pre_stop_drains_the_engine_that_is_started(
    engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SESSIOND_URL", raising=False)
    options, vllm_options = _parser().parse_known_args(engine["args"])
    asked = pre_stop(engine)
    assert asked.engine_url == options.engine_url
    assert asked.url == options.drain_url == DEFAULT_URL
    assert vllm_options == ["--host=0.0.0.0", "--port=8000"]
    assert [one["name"] for one in engine["env"]] == [TOKEN_VARIABLE]


def test_the_pod_has_time_for_all_ends(pod: dict[str, Any], engine: dict[str, Any]) -> None:
    options, _ = _parser().parse_known_args(engine["args"])
    drains_s = pre_stop(engine).deadline_s + options.drain_deadline_s
    assert pod["terminationGracePeriodSeconds"] >= drains_s + _OTHER_ENDS_S


def test_the_daemon_ends_after_the_engine(daemon: dict[str, Any]) -> None:
    assert daemon["restartPolicy"] == "Always"  # which makes it a sidecar


def test_the_daemon_starts_with_these_settings(
    daemon: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = "0123456789abcdef"
    for one in daemon["env"]:
        if "value" in one:
            monkeypatch.setenv(one["name"], one["value"].replace("$(TOKEN)", secret))
    settings = Settings(store_root=tmp_path / "store")
    assert (settings.host, settings.port) == ("0.0.0.0", 8600)
    assert settings.tokens == {secret: settings.operator_tenants[0]}


def test_both_share_the_store_and_have_the_volumes_that_they_name(
    pod: dict[str, Any], engine: dict[str, Any], daemon: dict[str, Any],
    documents: dict[str, dict[str, Any]],
) -> None:  # fmt: skip
    state = {"name": "state", "mountPath": "/var/lib/sessiond"}
    assert all(state in container["volumeMounts"] for container in (engine, daemon))
    used = {mount["name"] for one in (engine, daemon) for mount in one["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert used == set(volumes)
    claim = volumes["state"]["persistentVolumeClaim"]["claimName"]
    assert claim == documents["PersistentVolumeClaim"]["metadata"]["name"]
    assert volumes["shm"]["emptyDir"]["medium"] == "Memory"


def test_nothing_more_is_allowed_than_needed(
    pod: dict[str, Any], engine: dict[str, Any], daemon: dict[str, Any]
) -> None:
    least = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert engine["securityContext"] == daemon["securityContext"] == least
    assert pod["securityContext"]["runAsUser"] == 10001  # the images'


def test_two_engines_never_run_side_by_side(documents: dict[str, dict[str, Any]]) -> None:
    deployment = documents["Deployment"]["spec"]
    assert (deployment["replicas"], deployment["strategy"]["type"]) == (1, "Recreate")
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels
    assert documents["Service"]["spec"]["selector"] == labels
