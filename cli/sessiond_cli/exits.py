"""The one table from error code to exit status."""

from __future__ import annotations

from enum import IntEnum
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class ExitStatus(IntEnum):
    """How ``sessionctl`` ends."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    INVALID = 5
    UNAVAILABLE = 6
    UNAUTHORIZED = 7
    STORE = 8
    INTERRUPTED = 130


MEANINGS: Final[Mapping[ExitStatus, str]] = {
    ExitStatus.OK: "The command did what it was asked for.",
    ExitStatus.INTERNAL: "An error inside sessionctl or the daemon; 'store verify': damage found.",
    ExitStatus.USAGE: "The command line is not valid; nothing was done.",
    ExitStatus.NOT_FOUND: "There is no such session, snapshot, operation or engine.",
    ExitStatus.CONFLICT: "The state of the session, or of the engine, does not allow it now.",
    ExitStatus.INVALID: "The request can never work as it is.",
    ExitStatus.UNAVAILABLE: "The daemon, an engine or the registry does not answer.",
    ExitStatus.UNAUTHORIZED: "The token is missing or wrong, or it is no operator's.",
    ExitStatus.STORE: "A file of the store is damaged, sealed or has no room.",
    ExitStatus.INTERRUPTED: "Interrupted; what the daemon has begun goes on.",
}

#: Codes that only sessionctl knows, beside those of the error tree.
USAGE_CODE: Final = "usage"
INTERRUPTED_CODE: Final = "interrupted"
DAEMON_UNREACHABLE_CODE: Final = "daemon_unreachable"
NOT_SESSIOND_CODE: Final = "not_sessiond"
PURGE_INCOMPLETE_CODE: Final = "purge_incomplete"
DAMAGE_FOUND_CODE: Final = "damage_found"

#: The exit status of every error code; a test proves that none is missing.
STATUS: Final[Mapping[str, ExitStatus]] = {
    "internal_error": ExitStatus.INTERNAL,
    "invalid_input": ExitStatus.INVALID,
    "invalid_session_id": ExitStatus.INVALID,
    "invalid_tenant": ExitStatus.INVALID,
    "body_too_large": ExitStatus.INVALID,
    "nothing_to_suspend": ExitStatus.INVALID,
    "suspend_skipped": ExitStatus.INVALID,
    "not_text": ExitStatus.INVALID,
    "invalid_configuration": ExitStatus.INVALID,
    "not_found": ExitStatus.NOT_FOUND,
    "session_not_found": ExitStatus.NOT_FOUND,
    "operation_not_found": ExitStatus.NOT_FOUND,
    "engine_not_found": ExitStatus.NOT_FOUND,
    "response_lost": ExitStatus.NOT_FOUND,
    "snapshot_not_found": ExitStatus.NOT_FOUND,
    "conflict": ExitStatus.CONFLICT,
    "idempotency_key_reused": ExitStatus.CONFLICT,
    "session_exists": ExitStatus.CONFLICT,
    "events_reset": ExitStatus.CONFLICT,
    "turn_in_flight": ExitStatus.CONFLICT,
    "operation_in_progress": ExitStatus.CONFLICT,
    "generation_exists": ExitStatus.CONFLICT,
    "attestation_refused": ExitStatus.CONFLICT,
    "adapter_unproven": ExitStatus.CONFLICT,
    "suspend_refused": ExitStatus.CONFLICT,
    "unauthorized": ExitStatus.UNAUTHORIZED,
    "forbidden": ExitStatus.UNAUTHORIZED,
    "unavailable": ExitStatus.UNAVAILABLE,
    "no_engine": ExitStatus.UNAVAILABLE,
    "engine_unreachable": ExitStatus.UNAVAILABLE,
    "engine_lost": ExitStatus.UNAVAILABLE,
    "engine_without_connector": ExitStatus.UNAVAILABLE,
    "engine_refused": ExitStatus.UNAVAILABLE,
    "deadline_exceeded": ExitStatus.UNAVAILABLE,
    "identity_pending": ExitStatus.UNAVAILABLE,
    "tier_off": ExitStatus.UNAVAILABLE,
    "too_many_listeners": ExitStatus.UNAVAILABLE,
    "registry_unavailable": ExitStatus.UNAVAILABLE,
    "unsupported_engine": ExitStatus.UNAVAILABLE,
    "file_changed": ExitStatus.UNAVAILABLE,
    "lease_expired": ExitStatus.UNAVAILABLE,
    "ticket_invalid": ExitStatus.INVALID,
    "ticket_malformed": ExitStatus.INVALID,
    "ticket_forged": ExitStatus.INVALID,
    "ticket_expired": ExitStatus.INVALID,
    "store_error": ExitStatus.STORE,
    "store_insecure": ExitStatus.STORE,
    "store_version": ExitStatus.STORE,
    "snapshot_corrupt": ExitStatus.STORE,
    "store_key": ExitStatus.STORE,
    "store_full": ExitStatus.STORE,
    "store_late": ExitStatus.UNAVAILABLE,
    "quota_exceeded": ExitStatus.STORE,
    USAGE_CODE: ExitStatus.USAGE,
    INTERRUPTED_CODE: ExitStatus.INTERRUPTED,
    DAEMON_UNREACHABLE_CODE: ExitStatus.UNAVAILABLE,
    NOT_SESSIOND_CODE: ExitStatus.UNAVAILABLE,
    PURGE_INCOMPLETE_CODE: ExitStatus.CONFLICT,
    DAMAGE_FOUND_CODE: ExitStatus.INTERNAL,
}

# For codes of a newer daemon: its HTTP status tells what kind of error it is.
_STATUS_OF_HTTP: Final[Mapping[int, ExitStatus]] = {
    HTTPStatus.BAD_REQUEST: ExitStatus.INVALID,
    HTTPStatus.UNAUTHORIZED: ExitStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN: ExitStatus.UNAUTHORIZED,
    HTTPStatus.NOT_FOUND: ExitStatus.NOT_FOUND,
    HTTPStatus.CONFLICT: ExitStatus.CONFLICT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ExitStatus.INVALID,
    HTTPStatus.UNPROCESSABLE_ENTITY: ExitStatus.INVALID,
    HTTPStatus.TOO_MANY_REQUESTS: ExitStatus.UNAVAILABLE,
    HTTPStatus.BAD_GATEWAY: ExitStatus.UNAVAILABLE,
    HTTPStatus.SERVICE_UNAVAILABLE: ExitStatus.UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT: ExitStatus.UNAVAILABLE,
    HTTPStatus.INSUFFICIENT_STORAGE: ExitStatus.STORE,
}


def exit_status(code: str, http_status: int = HTTPStatus.INTERNAL_SERVER_ERROR) -> ExitStatus:
    """Return the exit status of an error *code*; *http_status* decides for unknown ones."""
    known = STATUS.get(code)
    return known or _STATUS_OF_HTTP.get(http_status, ExitStatus.INTERNAL)


def exit_status_block() -> str:
    """Return the end of every help text. The mark keeps its lines from being joined."""
    lines = [f"  {status.value:>3}  {meaning}" for status, meaning in MEANINGS.items()]
    return "\n".join(("\b", "EXIT STATUS", *lines))
