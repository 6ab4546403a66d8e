from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_benchmark_runs_and_tells_its_ratios(tmp_path: Path) -> None:
    command = [sys.executable, "tests/bench/store_bench.py", "--root", str(tmp_path)]
    options = ["--size-mib", "8", "--chunk-bytes", "1000000", "--rounds", "1", "--json"]
    done = subprocess.run(
        [*command, *options], capture_output=True, check=True, cwd=ROOT, env={"PYTHONPATH": "."}
    )
    report = json.loads(done.stdout)
    assert set(report["ratios"]) == {
        "restore_raw_vs_device_read",
        "restore_compressed_vs_device_read",
        "suspend_raw_vs_device_write",
        "suspend_compressed_vs_device_write",
        "stored_vs_raw",
    }
    assert all(ratio > 0 for ratio in report["ratios"].values())
    assert 0.5 < report["ratios"]["stored_vs_raw"] < 0.8
    assert list(tmp_path.iterdir()) == []
