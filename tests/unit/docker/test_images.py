"""No container engine runs where these tests do: the files are linted, and what would fail only
on a user's machine is compared with the project.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sessiond.domain.engines import vllm_supported

_ROOT = Path(__file__).parents[3]
_IMAGES = sorted((_ROOT / "docker").glob("*.Dockerfile"))
_OUR_UID = "10001"


def _instructions(image: Path) -> list[tuple[str, str]]:
    """Return a Dockerfile's instructions with their continuation lines joined."""
    lines = [line for line in image.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    parts = (line.partition(" ") for line in joined.splitlines() if line)
    return [(name, rest.strip()) for name, _, rest in parts]


def _arguments(image: Path, name: str) -> list[str]:
    return [rest for instruction, rest in _instructions(image) if instruction == name]


def test_there_are_two_images() -> None:
    assert [image.name for image in _IMAGES] == ["engine.Dockerfile", "sessiond.Dockerfile"]


@pytest.mark.parametrize("image", _IMAGES, ids=lambda image: image.name)
def test_hadolint_finds_nothing(image: Path) -> None:
    linter = Path(sys.executable).with_name("hadolint")
    ended = subprocess.run(
        [linter, "--no-color", image], capture_output=True, text=True, check=False
    )
    assert (ended.stdout, ended.returncode) == ("", 0), ended.stderr


@pytest.mark.parametrize("image", _IMAGES, ids=lambda image: image.name)
def test_what_is_copied_exists_and_is_not_ignored(image: Path) -> None:
    ignored = (_ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    for copied in _arguments(image, "COPY"):
        if copied.startswith("--from="):
            continue
        for source in copied.split()[:-1]:
            assert (_ROOT / source).exists(), source
            assert f"!{source}" in ignored, source


@pytest.mark.parametrize("image", _IMAGES, ids=lambda image: image.name)
def test_the_build_copies_what_the_wheel_is_made_of(image: Path) -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    folders = {package.partition("/")[0] for package in wheel["packages"]}
    files = {project["project"]["readme"], *project["project"]["license-files"]}
    copied = {source for copy in _arguments(image, "COPY") for source in copy.split()[:-1]}
    assert folders | files | {"pyproject.toml"} <= copied


@pytest.mark.parametrize("image", _IMAGES, ids=lambda image: image.name)
def test_both_images_run_as_the_same_ordinary_user(image: Path) -> None:
    assert _arguments(image, "USER") == [f"{_OUR_UID}:{_OUR_UID}"]
    (made,) = [rest for rest in _arguments(image, "RUN") if "useradd" in rest]
    assert f"--uid {_OUR_UID}" in made
    assert "--mode 0700" in made
    assert "/var/lib/sessiond" in made


@pytest.mark.parametrize("image", _IMAGES, ids=lambda image: image.name)
def test_both_images_keep_the_store_in_their_volume(image: Path) -> None:
    assert _arguments(image, "VOLUME") == ["/var/lib/sessiond"]
    assert any(
        "SESSIOND_STORE_ROOT=/var/lib/sessiond/store" in env for env in _arguments(image, "ENV")
    )


@pytest.mark.parametrize(
    ("name", "entry", "probe"),
    [
        ("engine", '["sessiond", "engine"]', ":8000/health"),
        ("sessiond", '["sessiond"]', ":8600/readyz"),
    ],
)
def test_what_an_image_starts_and_how_its_health_is_asked(
    name: str, entry: str, probe: str
) -> None:
    image = _ROOT / "docker" / f"{name}.Dockerfile"
    assert _arguments(image, "ENTRYPOINT") == [entry]
    (check,) = _arguments(image, "HEALTHCHECK")
    assert probe in check


def test_the_engine_image_is_the_vllm_that_was_tested() -> None:
    base = _arguments(_ROOT / "docker" / "engine.Dockerfile", "FROM")[-1]
    found = re.fullmatch(r"vllm/vllm-openai:v(\d+\.\d+\.\d+)", base)
    assert found
    assert vllm_supported(found[1])


def test_the_daemon_image_has_neither_vllm_nor_the_model() -> None:
    image = _ROOT / "docker" / "sessiond.Dockerfile"
    (installed,) = [rest for rest in _arguments(image, "RUN") if "pip install" in rest]
    assert '".[server,cli]"' in installed
