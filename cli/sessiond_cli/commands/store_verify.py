"""``sessionctl store verify``."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sessiond.app.paths import (
    KEY_FILE_VARIABLE,
    ROOT_VARIABLE,
    default_key_file,
    default_store_root,
)
from sessiond.domain.errors import StoreCorruptError, StoreKeyError
from sessiond.domain.keys import KeyRing
from sessiond_cli.exits import DAMAGE_FOUND_CODE
from sessiond_cli.failures import CommandError
from sessiond_cli.formats import count, size
from sessiond_cli.options import JsonFlag
from sessiond_cli.output import Output, facts, table

if TYPE_CHECKING:
    from rich.console import Console

    from sessiond.store.findings import Fault, VerifyReport
    from sessiond.store.store import Store
    from sessiond.store.verify import Verification

_SHOWN_FAULTS: Final = 50
_REPAIR_HINT: Final = (
    "Nothing damaged is ever loaded. --repair notes bad chunks and quarantines broken files; the "
    "next suspend of a session writes a whole snapshot again."
)


def _share(value: float) -> float:
    if not 0 < value <= 1:
        raise typer.BadParameter("it must be above 0 and at most 1")
    return value


def verify(
    *,
    store_root: Annotated[
        Path | None,
        typer.Option(
            "--store-root",
            envvar=ROOT_VARIABLE,
            metavar="PATH",
            show_default=False,
            help="The store; the user's own if left out.",
        ),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            "--key-file",
            envvar=KEY_FILE_VARIABLE,
            metavar="PATH",
            show_default=False,
            help="The server key; server.key beside the store root if left out.",
        ),
    ] = None,
    sample: Annotated[
        float,
        typer.Option(
            "--sample",
            metavar="P",
            callback=_share,
            help="Read this share of the chunks, above 0 and up to 1. Manifests and indexes are "
            "always read.",
        ),
    ] = 1.0,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Note bad chunks, quarantine broken manifests, heads and segments, remove what "
            "dead writers left. Nothing that can still be used is removed.",
        ),
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Read every file of a store and say what is damaged. Exit status 1: something is.

    Asks no daemon, and may run beside one. Without --repair nothing is changed. A store or
    file of another server key is no damage and is told with its own exit status. With --json:
    the counts, and faults with where, what, why, code, owner and quarantined_as.
    """
    # Only the store's commands need the store, and with it NumPy and the codecs.
    from sessiond.store.findings import VerifyOptions  # noqa: PLC0415

    output = Output(json)
    options = VerifyOptions(sample=sample, repair=repair)
    store = _open(store_root or default_store_root(), key_file)
    with output.working("Verifying …") as tell:
        report = store.verify(options, lambda run: tell(_progress(run)))
    output.show(asdict(report), lambda screen: _print(screen, report))
    _end(report, repaired=repair)


def _open(root: Path, key_file: Path | None) -> "Store":
    from sessiond.store.keyfile import load_server_key  # noqa: PLC0415
    from sessiond.store.store import Store  # noqa: PLC0415

    root = root.expanduser().absolute()
    key = load_server_key(key_file or default_key_file(root), create=False)
    try:
        return Store.open(root, KeyRing.from_server_key(key), create=False)
    except StoreCorruptError as error:
        raise CommandError(DAMAGE_FOUND_CODE, f"FORMAT: {error.message}") from error


def _progress(run: "Verification") -> str:
    done = run.report.sessions + run.report.tombstones
    return (
        f"Verifying … {count(done)} of {count(len(run.folders))} sessions, "
        f"{count(run.report.chunks)} chunks, {size(run.report.stored_bytes)}"
    )


def _end(report: "VerifyReport", *, repaired: bool) -> None:
    """Raise what decides the exit status."""
    if report.damaged:
        hint = "" if repaired else _REPAIR_HINT
        raise CommandError(DAMAGE_FOUND_CODE, f"Damage found: {count(report.damaged)}.", hint)
    if report.strange:
        raise CommandError(
            StoreKeyError.code,
            f"Files of another server key or version: {count(report.strange)}. They may be whole.",
            "Verify them with the key and the version that wrote them.",
        )


def _print(screen: "Console", report: "VerifyReport") -> None:
    screen.print(facts(_rows(report)))
    if report.faults:
        rows = [_fault_row(fault) for fault in report.faults[:_SHOWN_FAULTS]]
        screen.print(table(("what", "session", "where", "why"), rows))
    if len(report.faults) > _SHOWN_FAULTS:
        more = count(len(report.faults) - _SHOWN_FAULTS)
        screen.print(f"… and {more} more; --json lists them")


def _rows(report: "VerifyReport") -> list[tuple[str, str]]:
    skipped = f" ({count(report.chunks_skipped)} left out)" if report.chunks_skipped else ""
    unused = report.unreferenced_segments
    return [
        ("sessions", f"{count(report.sessions)}, deleted {count(report.tombstones)}"),
        ("snapshots", count(report.snapshots)),
        ("segments", f"{count(report.segments)}, unused {count(unused)}"),
        ("chunks read", f"{count(report.chunks)}{skipped}"),
        ("bytes read", f"{size(report.stored_bytes)} ({size(report.raw_bytes)} of KV)"),
        ("damaged", count(report.damaged)),
        ("quarantined now", count(report.quarantined)),
        ("leftovers removed", count(report.leftovers_removed)),
    ]


def _fault_row(fault: "Fault") -> tuple[str, str, str, str]:
    owner = fault.owner
    generations = ", ".join(map(str, owner.generations))
    session = f"{owner.tenant}/{owner.session}" if owner.session else "unknown"
    place = "" if fault.offset_bytes is None else f" at {fault.offset_bytes}"
    moved = f" Moved to quarantine/{fault.quarantined_as}." if fault.quarantined_as else ""
    return (
        fault.what,
        f"{session} {generations}".rstrip(),
        f"{fault.where}{place}",
        f"{fault.why}{moved}",
    )
