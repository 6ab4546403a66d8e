"""Queries about switches, which every daemon of the registry obeys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import delete, insert, update
from sqlalchemy.exc import IntegrityError

from sessiond.registry.models import SwitchRow

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as Database

    from sessiond.domain.canonical import JsonValue


def read(db: Database, name: str, *, lock: bool = False) -> dict[str, JsonValue] | None:
    """Return what the switch is set to; ``None`` if it is not set.

    :param lock: let nobody else change it until the transaction ends
    """
    row = db.get(SwitchRow, name, with_for_update={"key_share": True} if lock else None)
    return None if row is None else row.value


def put(db: Database, name: str, value: dict[str, JsonValue], now_unix_s: float) -> None:
    """Set the switch; the last of several that try at once decides."""
    if _update(db, name, value, now_unix_s):
        return
    try:
        with db.begin_nested():
            row = {"name": name, "value": value, "updated_unix_s": now_unix_s}
            db.execute(insert(SwitchRow).values(row))
    except IntegrityError:  # somebody else was faster
        _update(db, name, value, now_unix_s)


def clear(db: Database, name: str) -> bool:
    """Take the switch back; return whether it was set."""
    cleared = delete(SwitchRow).where(SwitchRow.name == name)
    return db.scalar(cleared.returning(SwitchRow.name)) is not None


def _update(db: Database, name: str, value: dict[str, JsonValue], now_unix_s: float) -> bool:
    changed = update(SwitchRow).where(SwitchRow.name == name)
    changed = changed.values(value=value, updated_unix_s=now_unix_s)
    return db.scalar(changed.returning(SwitchRow.name)) is not None
