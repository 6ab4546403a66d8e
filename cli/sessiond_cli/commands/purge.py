"""``sessionctl purge``."""

import sys
from typing import Annotated

import typer
from rich.console import Console

from sessiond_cli.daemon import Answer, Daemon
from sessiond_cli.exits import INTERRUPTED_CODE, PURGE_INCOMPLETE_CODE, USAGE_CODE
from sessiond_cli.failures import CommandError
from sessiond_cli.formats import count
from sessiond_cli.options import (
    DEFAULT_URL,
    Filters,
    JsonFlag,
    ModelFilter,
    PinnedFilter,
    SnapshotFilter,
    TokenOption,
    UrlOption,
)
from sessiond_cli.output import Output, text

_SHOWN_IDS = 20


def purge(  # noqa: PLR0913 - one parameter per option
    *,
    model: ModelFilter = None,
    has_snapshot: SnapshotFilter = None,
    pinned: PinnedFilter = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be deleted.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: JsonFlag = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = "",
) -> None:
    """Delete sessions with all their snapshots, for ever.

    Without filters: all sessions of the caller's tenant. Pinned ones only with --pinned. The
    filters count at the moment of deletion. With --json: matched, deleted, failed and
    session_ids.
    """
    filters = Filters(model, has_snapshot, pinned)
    output = Output(json)
    with Daemon(url, token) as daemon:
        if dry_run:
            found = _call(daemon, filters, dry_run=True)
            output.show(found, lambda screen: _print_found(screen, found))
            return
        if not yes and not _is_confirmed(daemon, filters, output):
            return
        with output.working("Deleting …"):
            report = _call(daemon, filters, dry_run=False)
    output.show(report, lambda screen: _print_report(screen, report))
    if report["failed"]:
        raise CommandError(
            PURGE_INCOMPLETE_CODE,
            f"Sessions that could not be deleted: {count(report['failed'])}.",
            "They may be busy: repeat the command.",
        )


def _call(daemon: Daemon, filters: Filters, *, dry_run: bool) -> Answer:
    return daemon.post("/v1/admin/purge", {**filters.as_json(), "dry_run": dry_run}, timeout_s=None)


def _is_confirmed(daemon: Daemon, filters: Filters, output: Output) -> bool:
    """Whether a person wants it; there is nothing to ask where nothing matches."""
    if output.as_json or not sys.stdin.isatty():
        raise CommandError(
            USAGE_CODE,
            "Nobody can be asked here, and nothing was deleted.",
            "Add --yes to delete, or --dry-run to see what would be deleted.",
        )
    found = _call(daemon, filters, dry_run=True)
    output.show(found, lambda screen: _print_found(screen, found))
    if not found["matched"]:
        return False
    if not typer.confirm("Delete them with all their snapshots?", err=True):
        raise CommandError(INTERRUPTED_CODE, "Nothing was deleted.")
    return True


def _print_found(screen: Console, found: Answer) -> None:
    ids = found["session_ids"]
    screen.print(f"Matching sessions: {count(found['matched'])}")
    for session_id in ids[:_SHOWN_IDS]:
        screen.print(text(f"  {session_id}"))
    if len(ids) > _SHOWN_IDS:
        screen.print(f"  … and {count(len(ids) - _SHOWN_IDS)} more; --json lists them all")


def _print_report(screen: Console, report: Answer) -> None:
    screen.print(f"Deleted sessions: {count(report['deleted'])} of {count(report['matched'])}")
