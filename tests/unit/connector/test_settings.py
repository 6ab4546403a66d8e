from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from sessiond.connector.settings import (
    CODECS,
    EXTRA_CONFIG_KEY,
    SETTING_MEANINGS,
    ConnectorSettings,
)
from sessiond.domain.errors import ConfigurationError
from sessiond.store.codecs import LOSSY, Codec

GIVEN = {"root": "/data/store", "key_file": "/data/key"}


def read(**settings: Any) -> ConnectorSettings:  # noqa: ANN401 - any JSON value
    return ConnectorSettings.from_extra_config({EXTRA_CONFIG_KEY: {**GIVEN, **settings}})


def test_the_two_paths_are_enough() -> None:
    assert read() == ConnectorSettings(Path("/data/store"), Path("/data/key"))


def test_every_setting_can_be_given() -> None:
    given: dict[str, Any] = {
        "url": "http://here:8000",
        "codec": "auto",
        "lossy": "fp8",
        "read_threads": 3,
        "write_threads": 2,
        "mover_memory_bytes": 1 << 28,
        "plan_deadline_s": 1,
        "job_deadline_s": 2.5,
        "hold_deadline_s": 3.5,
        "segment_limit_bytes": 4096,
        "free_space_floor_bytes": 0,
        "launch": "b103c350",
        "allow_weight_updates": True,
        "raise_in": ["a", "b"],
    }
    settings = read(**given)
    assert {*given, *GIVEN} == {field.name for field in fields(ConnectorSettings)}
    expected = {**given, "raise_in": ("a", "b")}
    assert {name: getattr(settings, name) for name in given} == expected


def test_every_setting_is_described() -> None:
    assert list(SETTING_MEANINGS) == [field.name for field in fields(ConnectorSettings)]


def test_paths_are_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    settings = read(root="store", key_file="~/key")
    assert (settings.root, settings.key_file) == (tmp_path / "store", tmp_path / "home" / "key")


@pytest.mark.parametrize("extra", [{}, {"sessiond": None}, {"sessiond": "x"}, {"sessiond": []}])
def test_without_settings_it_says_where_to_get_them(extra: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="--print"):
        ConnectorSettings.from_extra_config(extra)


@pytest.mark.parametrize("missing", GIVEN)
def test_each_path_is_needed(missing: str) -> None:
    given = {name: value for name, value in GIVEN.items() if name != missing}
    with pytest.raises(ConfigurationError, match=missing):
        ConnectorSettings.from_extra_config({EXTRA_CONFIG_KEY: given})


def test_unknown_settings_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"colour, size\."):
        read(size=1, colour=2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("root", ""),
        ("root", None),
        ("root", 5),
        ("key_file", ["a"]),
        ("url", 8000),
        ("codec", "zip"),
        ("codec", None),
        ("read_threads", 0),
        ("read_threads", -1),
        ("read_threads", "2"),
        ("read_threads", 2.7),
        ("read_threads", True),
        ("write_threads", 0),
        ("mover_memory_bytes", 0),
        ("plan_deadline_s", 0),
        ("plan_deadline_s", -1.0),
        ("plan_deadline_s", math.nan),
        ("plan_deadline_s", math.inf),
        ("plan_deadline_s", "soon"),
        ("job_deadline_s", True),
        ("hold_deadline_s", None),
        ("segment_limit_bytes", 0),
        ("free_space_floor_bytes", -1),
        ("free_space_floor_bytes", None),
        ("allow_weight_updates", "no"),
        ("allow_weight_updates", 1),
        ("raise_in", "SnapshotTier.lookup"),
        ("raise_in", [5]),
    ],
)
def test_a_wrong_value_is_refused_with_the_settings_name(
    name: str,
    value: Any,  # noqa: ANN401 - any JSON value
) -> None:
    with pytest.raises(ConfigurationError, match=name):
        read(**{name: value})


def test_every_lossless_codec_of_the_store_can_be_chosen() -> None:
    names = {codec.name.lower().replace("_", "-") for codec in Codec if codec not in LOSSY}
    assert {"auto", *names} == set(CODECS)


def test_loss_is_off_by_default_and_never_beside_a_pinned_codec() -> None:
    assert read().lossy == ""
    assert read(lossy="fp8", codec="auto").lossy == "fp8"
    for codec in ("raw", "planar-zstd"):
        with pytest.raises(ConfigurationError, match="Either 'codec'"):
            read(lossy="fp8", codec=codec)
    for unknown in ("fp4", "raw", True, None):
        with pytest.raises(ConfigurationError, match="'lossy'"):
            read(lossy=unknown)
