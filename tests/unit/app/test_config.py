from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

import sessiond
from sessiond.app.config import ENV_PREFIX, Settings, load_settings
from sessiond.domain.cron import parse_cron
from sessiond.domain.errors import ConfigurationError
from sessiond.domain.windows import SweepWindow

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


def test_sweep_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().limits.sweep_windows == ()
    toml = (
        'sweep_windows = [{ cron = "0 19 * * *", timezone = "Europe/Berlin", idle_s = 300, '
        'name = "evening" }]\nsweep_bytes_per_s = 1000\nsweep_yield_s = 5'
    )
    write(tmp_path, toml, monkeypatch)
    limits = load_settings().limits
    assert (limits.sweep_bytes_per_s, limits.sweep_yield_s) == (1000, 5)
    evening = SweepWindow("evening", parse_cron("0 19 * * *"), "Europe/Berlin", 300)
    assert limits.sweep_windows == (evening,)
    write(tmp_path, '[[sweep_windows]]\ncron = "0 19 * * 1"\nidle_s = 0', monkeypatch)
    (monday,) = load_settings().limits.sweep_windows
    assert (monday.name, monday.timezone, monday.cron.weekdays) == ("0 19 * * 1", "UTC", (1,))
    in_json = '[{"cron": "*/5 * * * *", "idle_s": 1.5}, {"cron": "0 0 1 * *", "idle_s": 2}]'
    monkeypatch.setenv("SESSIOND_SWEEP_WINDOWS", in_json)
    assert [window.idle_s for window in load_settings().limits.sweep_windows] == [1.5, 2]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ('[{"cron": "0 25 * * *", "idle_s": 1}]', "WINDOWS.0: .*hour '25' is not between 0 and 23"),
        ('[{"cron": "0 0 31 2 *", "idle_s": 1}]', "never comes"),
        ('[{"cron": "daily", "idle_s": 1}]', "five fields"),
        ('[{"cron": "0 0 * * *"}]', "WINDOWS.0.idle_s: Field required"),
        ('[{"cron": "0 0 * * *", "idle_s": -1}]', "WINDOWS.0.idle_s"),
        ('[{"cron": "0 0 * * *", "idle_s": 1, "tz": "UTC"}]', "WINDOWS.0.tz"),
        ('[{"cron": "0 0 * * *", "idle_s": 1, "timezone": "Mars/Base"}]', "time zone 'Mars/Base'"),
        ('[{"cron": "0 0 * * *", "idle_s": 1, "timezone": "../UTC"}]', "time zone"),
        ('[{"cron": "0 0 * * *", "idle_s": 1, "timezone": ""}]', "time zone"),
        ('[{"cron": "0 0 * * *", "idle_s": 1, "name": "a\\nb"}]', "printable"),
        (
            '[{"cron": "0 0 * * *", "idle_s": 1}, {"cron": "0  0 * * *", "idle_s": 2}]',
            "two windows are named '0 0",
        ),
        ('{"cron": "0 0 * * *", "idle_s": 1}', "WINDOWS: "),
        ("0 19 * * *", "sweep_windows"),
    ],
)
def test_a_window_that_cannot_be_is_refused_with_its_reason(
    value: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SESSIOND_SWEEP_WINDOWS", value)
    with pytest.raises(ConfigurationError, match=why):
        load_settings()


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
    if field.annotation is float and not name.endswith(("_chance", "_part")):
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
