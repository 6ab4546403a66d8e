"""``sessiond doctor``, for real, with little to move."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sessiond.app.doctor import main as doctor
from sessiond.app.doctor.facts import find_facts
from sessiond.app.doctor.stages import Bytes, Sizes, made_up_kv, measure
from sessiond.app.main import main
from sessiond.store import planes
from sessiond.store.codecchoice import try_codecs

SMALL = Sizes(file_bytes=4 << 20, chunk_bytes=256 << 10, slots=8, repeat_s=0.0)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SIZES", SMALL)


def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    root.mkdir(0o700)
    return root


def test_every_stage_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    rates = measure(tmp_path, SMALL, threads=2)
    assert list(tmp_path.iterdir()) == []
    assert [one.codec for one in rates.codecs] == ["raw", "zstd", "planar-zstd"]
    raw, _, planar = rates.codecs
    assert raw.stored_share == 1.0
    assert 0.5 < planar.stored_share < 0.9
    found = (rates.write_bytes_s, rates.read_bytes_s, rates.scatter_bytes_s, rates.copy_bytes_s)
    # Wide: of a machine that does nothing else, and of one that hardly gets to it.
    assert all(1e5 < rate < 1e12 for rate in found)
    assert all(1e5 < one.deliver_bytes_s < 1e12 for one in rates.codecs)
    assert 0.0 < rates.sync_s < 60.0
    assert 0 < rates.size_bytes <= SMALL.file_bytes


def test_a_chunk_is_decoded_once_on_its_way_as_the_mover_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined_bytes: list[int] = []
    join = planes.join

    def counted(low: Bytes, high: Bytes, raw: Bytes) -> None:
        joined_bytes.append(len(raw))
        join(low, high, raw)

    monkeypatch.setattr(planes, "join", counted)
    measure(tmp_path, SMALL, threads=2)
    # Two stages, each once to warm up and once to be measured.
    assert sum(joined_bytes) == 2 * 2 * SMALL.slots * SMALL.chunk_bytes


def test_kv_that_is_made_up_compresses_like_real_kv() -> None:
    _, planar = try_codecs(made_up_kv(1 << 20, seed=1).data)
    assert 0.6 < planar.stored_share < 0.8


def test_the_report_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = store(tmp_path)
    status = main(["doctor", "--store-root", str(root), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert list(root.iterdir()) == []
    problems = [one for one in told["findings"] if one["level"] == "problem"]
    assert (status, told["fine"]) == ((1, False) if problems else (0, True))
    assert told["machine"]["store_root"] == str(root)
    assert told["bottleneck"] in ("read", "decode", "deliver", "copy")
    assert {one["codec"] for one in told["restores"]} == {"raw", "zstd", "planar-zstd"}
    assert told["best_codec"] == told["restores"][0]["codec"]
    assert told["seconds"] < 20


@pytest.mark.parametrize(("huge_pages", "status"), [("madvise", 0), ("never", 1)])
def test_the_exit_status_says_whether_there_are_problems(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    huge_pages: str,
    status: int,
) -> None:
    root = store(tmp_path)
    facts = replace(
        find_facts(root, root, 0),
        file_system="ext4",
        direct_io=True,
        usable_cores=8.0,
        huge_pages=huge_pages,
    )
    measured = measure(tmp_path, SMALL)
    fast = (replace(one, decode_bytes_s=9e9, deliver_bytes_s=8e9) for one in measured.codecs)
    rates = replace(measured, read_bytes_s=2e9, copy_bytes_s=9e9, sync_s=0.01, codecs=tuple(fast))
    monkeypatch.setattr(doctor, "find_facts", lambda *_: facts)
    monkeypatch.setattr(doctor, "measure", lambda *_: rates)

    assert main(["doctor", "--store-root", str(root)]) == status

    told = capsys.readouterr().out
    assert told.endswith("There are problems.\n" if status else "Nothing is wrong.\n")
    assert "The bottleneck is reading the device: with planar-zstd, restores reach" in told


def test_a_root_that_is_missing_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SESSIOND_STORE_ROOT", str(tmp_path / "no" / "store"))
    main(["doctor"])
    assert "note: There is no store root yet" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("as_json", [False, True])
def test_what_cannot_be_measured(capsys: pytest.CaptureFixture[str], *, as_json: bool) -> None:
    # Nobody, not even root, can make a file there.
    arguments = ["doctor", "--store-root", "/proc/self/store", *(["--json"] if as_json else [])]
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "cannot be measured" in captured.err


def test_a_floor_that_is_no_number(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SESSIOND_FREE_SPACE_FLOOR_BYTES", "much")
    assert main(["doctor", "--store-root", str(tmp_path)]) == 2
    assert "SESSIOND_FREE_SPACE_FLOOR_BYTES" in capsys.readouterr().err


def test_the_bare_package_is_enough() -> None:
    blocked = "; ".join(
        f"sys.modules[{name!r}] = None" for name in ("rich", "pydantic_settings", "httpx", "torch")
    )
    command = f"import sys; {blocked}; import sessiond.app.doctor.main"
    ended = subprocess.run([sys.executable, "-c", command], capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
