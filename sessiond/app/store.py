"""``sessiond store``: work on a store's files that needs the registry."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from sessiond.app.config import ENV_PREFIX, Settings, load_settings
from sessiond.app.exits import refusal_text
from sessiond.domain.errors import SessiondError
from sessiond.domain.keys import KeyRing
from sessiond.registry import Registry, current_revision, upgrade
from sessiond.service.rebuild import RebuildReport, rebuild_registry
from sessiond.store.keyfile import load_server_key
from sessiond.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SQLITE = "sqlite:///"
_EPILOG = """
Run it after the registry's database was lost, or replaced by an older copy; the settings are
those of 'sessiond serve', which may run meanwhile. Sessions, pins, timeouts and snapshots come
back, and what was deleted does not. In an older copy, sessions that were deleted more than a day
ago stay, and their resume says snapshot_missing: nothing in the store tells of them any more.
Operations, events and idempotency keys are not in the files.

exit status: 0 if all was brought back; 1 if some files could not be read, which are named; 2 if
the configuration, the store or the registry cannot be used.
"""


def run(arguments: Sequence[str]) -> int:
    """Run ``sessiond store`` with *arguments*; return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        settings = load_settings(store_root=options.store_root)
        report = _rebuild(settings, dry_run=options.dry_run)
    except SessiondError as error:
        sys.stderr.write(refusal_text("store", error, as_json=options.json))
        return 2
    told = _as_json(report) if options.json else _as_text(report, dry_run=options.dry_run)
    sys.stdout.write(told)
    return 0 if report.is_complete else 1


def _rebuild(settings: Settings, *, dry_run: bool) -> RebuildReport:
    key = load_server_key(settings.resolved_key_file, create=False)
    store = Store.open(settings.store_root, KeyRing.from_server_key(key), create=False)
    with _registry(settings.resolved_registry_url, dry_run=dry_run) as registry:
        return rebuild_registry(store, registry, dry_run=dry_run)


@contextmanager
def _registry(url: str, *, dry_run: bool) -> Iterator[Registry]:
    """Yield the registry; for a dry run of one that does not exist, an empty one in its place."""
    with tempfile.TemporaryDirectory(prefix="sessiond-") as folder:
        if dry_run and _is_missing(url):
            url = f"{_SQLITE}{folder}/registry.db"
            upgrade(url)
        elif not dry_run:
            upgrade(url)
        registry = Registry.open(url)
        try:
            yield registry
        finally:
            registry.close()


def _is_missing(url: str) -> bool:
    if url.startswith(_SQLITE) and not Path(url.removeprefix(_SQLITE)).exists():
        return True
    return current_revision(url) is None


def _as_json(report: RebuildReport) -> str:
    return json.dumps(asdict(report)) + "\n"


def _as_text(report: RebuildReport, *, dry_run: bool) -> str:
    lines = [
        "Nothing was written; this is what would be done." if dry_run else "",
        f"sessions brought back: {report.created}",
        f"sessions brought up to date: {report.changed}",
        f"sessions that were right: {report.unchanged}",
        f"their snapshots: {report.snapshots}",
        f"deleted sessions, left out: {report.left_out}, removed: {report.deleted}",
        f"files that could not be read: {len(report.unreadable)}",
        *(f"  {one.where}: {one.why}" for one in report.unreadable),
    ]
    return "".join(f"{line}\n" for line in lines if line)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sessiond store", description="Work on a store's files.", allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    rebuild = commands.add_parser(
        "rebuild-registry",
        help="bring the registry back from the store's files alone",
        description="Bring the registry back from the store's files alone. Repeating it is safe.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    described = Settings.model_fields["store_root"].description
    rebuild.add_argument("--store-root", help=f"{described} [env: {ENV_PREFIX}STORE_ROOT]")
    rebuild.add_argument("--dry-run", action="store_true", help="only say what would be done")
    rebuild.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser
