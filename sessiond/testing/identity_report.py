"""What the identity tests found, as one JSON file that many test runs add to."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

#: Names the report's file; without it nothing is written.
REPORT_VARIABLE = "SESSIOND_IDENTITY_REPORT"
_SECTIONS = ("fields", "architectures", "versions")

Report = dict[str, dict[str, Any]]
_NOT_PROVED: Mapping[str, Any] = {
    "outcome": "not proved",
    "reason": "",
    "output_matches_fresh_engine": False,
}


class IdentityReport:
    """Adds findings to the report's file, one at a time, so that a run that ends early reports too.

    :param path: the file; ``None`` writes nothing
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._told: list[tuple[str, str]] = []

    @classmethod
    def from_environment(cls) -> IdentityReport:
        """Return the report that ``SESSIOND_IDENTITY_REPORT`` names."""
        named = os.environ.get(REPORT_VARIABLE)
        return cls(Path(named) if named else None)

    def field(
        self, name: str, *, outcome: str, reason: str, output_matches_fresh_engine: bool
    ) -> None:
        """Say how a resume ended on an engine that differs in one fact."""
        found = {
            "outcome": outcome,
            "reason": reason,
            "output_matches_fresh_engine": output_matches_fresh_engine,
        }
        self._add("fields", name, found)

    def architecture(self, kind: str, result: Literal["golden", "refused"]) -> None:
        """Say what became of a kind of KV group."""
        self._add("architectures", kind, result)

    def version(self, vllm: str, passed: bool) -> None:  # noqa: FBT001 - the one thing it says
        """Say whether the engine tests passed with this vLLM."""
        self._add("versions", vllm, passed)

    def merge(self, reports: Mapping[str, Path]) -> None:
        """Take over what was found with each version of vLLM, by the report of each.

        Where they tell different things of a field, each is told with its version, and one that
        some did not prove is proved by none. A kind of KV group is golden if it is so with all;
        one that only some found golden, and the others did not look at, is left out.
        """
        found = {version: _read(path) for version, path in reports.items()}
        fields = _by_name(found, "fields")
        kinds = _by_name(found, "architectures")
        for name, told in fields.items():
            every = {version: told.get(version, _NOT_PROVED) for version in found}
            agree = all(one["output_matches_fresh_engine"] for one in every.values())
            outcome, reason = (_in_one(every, part) for part in ("outcome", "reason"))
            self.field(name, outcome=outcome, reason=reason, output_matches_fresh_engine=agree)
        for kind, results in kinds.items():
            if "refused" in results.values():
                self.architecture(kind, "refused")
            elif len(results) == len(found):
                self.architecture(kind, "golden")

    def withdraw(self) -> None:
        """Take back what this one has told: not all that it was to prove has held."""
        self._update(self._without_told)
        self._told.clear()

    def _without_told(self, report: Report) -> None:
        for section, name in self._told:
            report[section].pop(name, None)

    def _add(self, section: str, name: str, found: object) -> None:
        self._told.append((section, name))
        self._update(lambda report: report[section].update({name: found}))

    def _update(self, change: Callable[[Report], object]) -> None:
        if self._path is not None:
            _update(self._path, change)


def _by_name(found: Mapping[str, Report], section: str) -> dict[str, dict[str, Any]]:
    """Return what each version's report has of a name, by version."""
    names = dict.fromkeys(name for report in found.values() for name in report[section])
    return {
        name: {
            version: one[section][name] for version, one in found.items() if name in one[section]
        }
        for name in names
    }


def _in_one(told: Mapping[str, Mapping[str, str]], part: str) -> str:
    values = {version: one[part] for version, one in told.items()}
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return "; ".join(f"{value or 'none'} with {version}" for version, value in values.items())


def _read(path: Path) -> Report:
    known = json.loads(path.read_text()) if path.exists() else {}
    return {section: known.get(section, {}) for section in _SECTIONS}


def _update(path: Path, change: Callable[[Report], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    report = _read(path)
    change(report)
    # Renamed, so that whoever reads it meanwhile, or after a kill, finds a whole report.
    new = path.with_suffix(".new")
    new.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n")
    new.replace(path)
