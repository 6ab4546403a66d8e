"""``make versions``: the engine and identity tests with each tested vLLM.

Every version has an environment of its own. The report says of each whether its tests passed, and
what they found with all of them together; what each found alone lies beside it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sessiond.testing.identity_report import REPORT_VARIABLE, IdentityReport

#: Pythons of the environments of the other versions, separated by spaces.
OTHERS_VARIABLE = "SESSIOND_OTHER_PYTHONS"
_FOLDER = Path(".identity")
_TESTS = "tests/engine"
_TELL_VERSION = "from sessiond.connector.versions import vllm_version; print(vllm_version())"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests in each environment; 0 if all passed in all of them."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("environments", nargs="+", type=Path, metavar="ENVIRONMENT")
    pythons = [
        str(environment.absolute() / "bin" / "python")
        for environment in parser.parse_args(arguments).environments
    ]
    own_reports: dict[str, Path] = {}
    path = _FOLDER / "report.json"
    path.unlink(missing_ok=True)  # what an earlier run found is not what these find
    report = IdentityReport(path)
    passed = True
    for python in pythons:
        version = version_in(python)
        own_reports[version] = (_FOLDER / f"vllm-{version}.json").absolute()
        passes = _passes(python, pythons, version, own_reports[version])
        report.version(version, passes)
        passed = passed and passes
    report.merge(own_reports)
    return 0 if passed else 1


def version_in(python: str) -> str:
    """Return the version of the vLLM that an environment's *python* imports."""
    command = (python, "-c", _TELL_VERSION)
    told = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - ours
    return told.stdout.strip()


def _passes(python: str, pythons: Sequence[str], version: str, own_report: Path) -> bool:
    own_report.unlink(missing_ok=True)
    env = {
        **os.environ,
        REPORT_VARIABLE: str(own_report),
        OTHERS_VARIABLE: " ".join(other for other in pythons if other != python),
    }
    sys.stdout.write(f"vLLM {version}:\n")
    sys.stdout.flush()
    command = (python, "-m", "pytest", "-p", "no:cacheprovider", _TESTS)
    return subprocess.run(command, env=env, check=False).returncode == 0  # noqa: S603 - ours


if __name__ == "__main__":
    sys.exit(main())
