"""What calls raise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sessiond.client.answers import Operation

_SERVER_ERROR = 500


class ApiError(Exception):
    """sessiond refused or failed; REFERENCE.md lists the codes.

    :ivar code: stable, such as ``no_engine``
    :ivar detail: one sentence for a person
    :ivar hint: what to do; may be empty
    :ivar status: of HTTP; 0 without an answer
    :ivar retryable: whether the same call may work later
    """

    def __init__(
        self, code: str, detail: str, hint: str = "", *, status: int = 0, retryable: bool = False
    ) -> None:
        super().__init__(f"{code}: {detail}" + (f" {hint}" if hint else ""))
        self.code, self.detail, self.hint = code, detail, hint
        self.status, self.retryable = status, retryable


class UnreachableError(ApiError):
    """No daemon answers."""

    def __init__(self, detail: str) -> None:
        hint = "Start it with 'sessiond serve', or check the URL."
        super().__init__("daemon_unreachable", detail, hint, retryable=True)


class NotSessiondError(ApiError):
    """What answers is not sessiond, or not one that this client can talk to."""

    def __init__(self, detail: str, status: int = 0) -> None:
        super().__init__("not_sessiond", detail, "Check the URL.", status=status)


class OperationRunningError(ApiError):
    """A long call was not waited for until its end; it goes on.

    :ivar operation: what to wait for
    """

    def __init__(self, operation: Operation) -> None:
        super().__init__("operation_running", "The operation goes on.", retryable=True)
        self.operation = operation


def problem_error(status: int, body: Any) -> ApiError:  # noqa: ANN401 - any JSON
    """Return the error that an answer tells of."""
    if not isinstance(body, dict) or not isinstance(body.get("code"), str):
        return NotSessiondError(f"It answers {status}, not as sessiond does.", status)
    return told_error(body, str(body.get("detail", "")), status)


def told_error(told: Mapping[str, Any], detail: str, status: int = _SERVER_ERROR) -> ApiError:
    """Return the error with the code, the hint and the nature that are told."""
    return ApiError(
        str(told.get("code", "internal_error")),
        detail,
        str(told.get("hint") or ""),
        status=status,
        retryable=bool(told.get("retryable")),
    )
