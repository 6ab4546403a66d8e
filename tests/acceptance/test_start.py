"""What refuses to start says why, and how to do better."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ENGINE = (sys.executable, "-m", "sessiond.app.main", "engine")


def run_engine(*options: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    if path is not None:
        env["PYTHONPATH"] = str(path)
    return subprocess.run(
        (*ENGINE, *options), capture_output=True, text=True, timeout=120, check=False, env=env
    )


def pretend_vllm(folder: Path, version: str) -> Path:
    """Make a vLLM of another version look installed."""
    info = folder / f"vllm-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return folder


def test_vllm_outside_the_tested_range_is_refused_with_the_range(tmp_path: Path) -> None:
    result = run_engine("model", path=pretend_vllm(tmp_path, "0.45.1"))

    assert result.returncode == 2
    assert "0.45.1" in result.stderr
    assert ">=0.31.0, <0.33.0" in result.stderr


def test_print_shows_the_plain_vllm_command(tmp_path: Path) -> None:
    result = run_engine(
        str(tmp_path), "--print", "--store-root", str(tmp_path / "store"), "--port", "8123"
    )

    assert result.returncode == 0
    assert "-m vllm.entrypoints.openai.api_server" in result.stdout
    assert '"kv_load_failure_policy": "recompute"' in result.stdout
    assert '"url": "http://127.0.0.1:8123"' in result.stdout
    assert not (tmp_path / "store").exists()


def test_a_store_root_that_others_can_read_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir(mode=0o755)
    env = {
        "PATH": "/usr/bin:/bin",
        "SESSIOND_STORE_ROOT": str(root),
        "SESSIOND_REGISTRY_URL": f"sqlite:///{tmp_path / 'registry.db'}",
        "SESSIOND_KEY_FILE": str(tmp_path / "server.key"),
    }

    result = subprocess.run(
        (sys.executable, "-m", "sessiond.app.main", "serve"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=env,
    )

    assert result.returncode != 0
    assert "chmod 700" in result.stderr
    assert "Traceback" not in result.stderr
