from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

import sessiond
from sessiond.app.config import ENV_PREFIX, Settings, load_settings
from sessiond.domain.errors import ConfigurationError

TOKENS = '{"0123456789abcdef": "alpha"}'


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CONFIG", *Settings.model_fields):
        monkeypatch.delenv(f"{ENV_PREFIX}{name.upper()}", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def write(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sessiond.toml"
    path.write_text(text)
    monkeypatch.setenv("SESSIOND_CONFIG", str(path))


def test_the_default_is_safe(tmp_path: Path) -> None:
    settings = load_settings()
    assert settings.host == "127.0.0.1"
    assert settings.store_root == tmp_path / "sessiond" / "store"
    assert settings.resolved_key_file == tmp_path / "sessiond" / "server.key"
    assert settings.resolved_registry_url == f"sqlite:///{tmp_path}/sessiond/registry.db"


def test_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "port = 1\nidle_timeout_s = 1\nlease_s = 5", monkeypatch)
    monkeypatch.setenv("SESSIOND_PORT", "2")
    monkeypatch.setenv("SESSIOND_IDLE_TIMEOUT_S", "2")
    settings = load_settings(port=3, host=None)
    assert (settings.port, settings.idle_timeout_s, settings.lease_s) == (3, 2, 5)
    assert settings.limits.idle_timeout_s == 2


def test_what_bounds_the_store_reaches_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().limits.free_space_floor_bytes is None
    given = {
        "TTL_S": 3600,
        "KEEP_GENERATIONS": 2,
        "QUOTA_TENANT_BYTES": 10**9,
        "QUOTA_TOTAL_BYTES": 10**10,
        "FREE_SPACE_FLOOR_BYTES": 0,
        "RETENTION_INTERVAL_S": 7,
    }
    for name, value in given.items():
        monkeypatch.setenv(f"SESSIOND_{name}", str(value))
    limits = load_settings().limits
    assert {name: getattr(limits, name.lower()) for name in given} == given


def test_tables_and_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml = 'engines = ["http://a:1/", "http://b"]\n[tokens]\n0123456789abcdef = "alpha"'
    write(tmp_path, toml, monkeypatch)
    settings = load_settings()
    assert settings.engines == ("http://a:1", "http://b")
    assert settings.tokens == {"0123456789abcdef": "alpha"}
    monkeypatch.setenv("SESSIOND_ENGINES", "http://c , http://d/")
    monkeypatch.setenv("SESSIOND_TOKENS", TOKENS)
    assert settings.operator_tenants == ("default",)
    monkeypatch.setenv("SESSIOND_OPERATOR_TENANTS", "alpha, ops")
    settings = load_settings()
    assert settings.operator_tenants == ("alpha", "ops")
    assert settings.engines == ("http://c", "http://d")
    assert settings.tokens == {"0123456789abcdef": "alpha"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_other_machines_need_tokens(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="SESSIOND_TOKENS"):
        load_settings(host=host)
    monkeypatch.setenv("SESSIOND_TOKENS", TOKENS)
    assert load_settings(host=host).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_this_machine_needs_none(host: str) -> None:
    assert load_settings(host=host).tokens == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "99999"),
        ("port", "x"),
        ("idle_timeout_s", "-1"),
        ("idle_timeout_s", "nan"),
        ("sweep_interval_s", "0"),
        ("engines", "ftp://a"),
        ("tokens", '{"short": "alpha"}'),
        ("tokens", '{"0123456789abcdef": "../alpha"}'),
        ("tokens", "{"),
        ("operator_tenants", "../alpha"),
        ("log_level", "loud"),
    ],
)
def test_a_wrong_value_names_its_variable(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{ENV_PREFIX}{name.upper()}", value)
    with pytest.raises(ConfigurationError, match=f"(?i){name}"):
        load_settings()


def test_wrong_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "prot = 1", monkeypatch)
    with pytest.raises(ConfigurationError, match="PROT"):
        load_settings()
    write(tmp_path, "port = ", monkeypatch)
    with pytest.raises(ConfigurationError):
        load_settings()
    monkeypatch.setenv("SESSIOND_CONFIG", str(tmp_path / "nothing"))
    with pytest.raises(ConfigurationError, match="SESSIOND_CONFIG"):
        load_settings()


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESSIOND_TOKENS", TOKENS)
    monkeypatch.setenv("SESSIOND_ENGINE_API_KEY", "sk-secret")
    shown = repr(load_settings())
    assert "0123456789abcdef" not in shown
    assert "sk-secret" not in shown
    monkeypatch.setenv("SESSIOND_TOKENS", '{"shortsecret": "alpha"}')
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert "shortsecret" not in str(caught.value)


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        load_settings().port = 1


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_says_what_it_is(name: str) -> None:
    field = Settings.model_fields[name]
    assert field.description
    assert field.description.endswith(".")
    if field.annotation is float:
        assert name.endswith("_s")
        assert field.description.startswith("Seconds")


def test_only_the_configuration_reads_the_environment() -> None:
    root = Path(sessiond.__file__).parent
    rooms = ("api", "domain", "engine", "registry", "scheduler", "service", "store")
    readers = [
        path
        for room in rooms
        for path in (root / room).rglob("*.py")
        if "os.environ" in path.read_text() or "getenv" in path.read_text()
    ]
    assert readers == []
