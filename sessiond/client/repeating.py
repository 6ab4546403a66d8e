"""When a call is sent again, and how long a long one is waited for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import httpx

from sessiond.client.calls import ROUND_S
from sessiond.client.errors import (
    ApiError,
    OperationRunningError,
    UnreachableError,
    problem_error,
)

if TYPE_CHECKING:
    from sessiond.client.calls import Call

#: How often a call is sent again, by default.
RETRIES: Final = 3
#: How long a lost stream of events is sought again.
RECONNECT_S: Final = 60.0
RECONNECT_PAUSE_S: Final = 1.0
#: A daemon tells in less than this that nothing happened.
STREAM_SILENCE_S: Final = 60.0
#: Of a suspend at the end of a scope: the turn before it may just be ending, or the engine come
#: back in a moment.
SETTLE_S: Final = 5.0
SETTLE_PAUSE_S: Final = 0.2

_FIRST_PAUSE_S: Final = 0.2
_LONGEST_POLL_S: Final = 1.0
_CONNECT_S: Final = 5.0
_ANSWER_S: Final = 60.0
_REPEATED_STATUS: Final = (429, 502, 503)


class Attempts:
    """The attempts of one call.

    :ivar call: to be sent next. It keeps its idempotency key while nobody knows what became of
        it: then it is the same attempt. An operation that began and failed has used its key up.
    """

    def __init__(self, call: Call[Any], retries: int) -> None:
        self.call, self._left = call, retries
        self._pause_s = _FIRST_PAUSE_S

    def pause_after_loss_s(self, error: httpx.TransportError) -> float:
        """Return how long to wait before the call is sent again, after no answer came.

        :raises UnreachableError: it is not sent again.
        """
        nothing_sent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
        if self._left and (nothing_sent or self.call.is_repeatable):
            return self._next_pause_s()
        raise UnreachableError(f"No answer: {str(error) or type(error).__name__}.") from error

    def pause_after_answer_s(self, status: int, body: Any) -> float | None:  # noqa: ANN401 - JSON
        """Return how long to wait before the call is sent again; ``None``: the answer is good.

        :raises ApiError: the answer is an error, and the call is not sent again.
        """
        if httpx.codes.is_success(status) and isinstance(body, dict):
            return None
        error = problem_error(status, body)
        if not (self._left and error.retryable and status in _REPEATED_STATUS):
            raise error
        if body.get("instance"):
            self.call = self.call.with_new_key()
        return self._next_pause_s()

    def _next_pause_s(self) -> float:
        self._left -= 1
        self._pause_s *= 2
        return self._pause_s / 2


class Patience:
    """How long a long call is waited for; *wait_s* ``None``: until its end."""

    def __init__(self, wait_s: float | None) -> None:
        self._until_s = None if wait_s is None else time.monotonic() + wait_s
        self._poll_s = 0.05

    def first_round_s(self) -> float:
        """Return how long the call itself may wait."""
        return ROUND_S if self._until_s is None else min(ROUND_S, self._left_s())

    def next_poll_s(self) -> float | None:
        """Return when to ask for the operation again; ``None``: no more."""
        if self._until_s is not None and self._left_s() == 0:
            return None
        self._poll_s = min(_LONGEST_POLL_S, 1.5 * self._poll_s)
        return self._poll_s if self._until_s is None else min(self._poll_s, self._left_s())

    def _left_s(self) -> float:
        assert self._until_s is not None
        return max(0.0, self._until_s - time.monotonic())


def timeouts(call: Call[Any]) -> httpx.Timeout:
    """Return how long to wait for what."""
    return httpx.Timeout(_ANSWER_S + call.wait_s, connect=_CONNECT_S)


def json_of(response: httpx.Response) -> Any:  # noqa: ANN401 - JSON
    """Return the answer's JSON; ``None`` if it has none."""
    try:
        return response.json()
    except ValueError:
        return None


class Settling:
    """The tries of a suspend that may run into something that ends by itself soon.

    :param wait_s: how long its end is waited for; ``None``: as long as it takes
    """

    def __init__(self, wait_s: float | None) -> None:
        self._began_s, self._wait_s = time.monotonic(), wait_s

    def left_s(self) -> float | None:
        """Return how long the next try may be waited for."""
        return None if self._wait_s is None else max(0.0, self._wait_s - self._passed_s())

    def pause_s(self, error: ApiError) -> float:
        """Return how long to wait before the next try.

        :raises ApiError: the given one: it stays, or has lasted for too long.
        """
        tried_s = SETTLE_S if self._wait_s is None else min(SETTLE_S, self._wait_s)
        runs_on = isinstance(error, OperationRunningError)
        if runs_on or not error.retryable or self._passed_s() > tried_s:
            raise error
        return SETTLE_PAUSE_S

    def _passed_s(self) -> float:
        return time.monotonic() - self._began_s


class Reconnects:
    """The search for a stream of events that was lost."""

    def __init__(self) -> None:
        self._lost_s: float | None = None

    def found(self) -> None:
        """Note that the stream works."""
        self._lost_s = None

    def pause_s(self, error: Exception) -> float:
        """Return how long to wait before the next attempt.

        :raises UnreachableError: it has been lost for too long.
        :raises ApiError: a refusal that stays, or has lasted for as long.
        """
        if isinstance(error, ApiError) and not error.retryable:
            raise error
        now_s = time.monotonic()
        if self._lost_s is None:
            self._lost_s = now_s
        if now_s - self._lost_s < RECONNECT_S:
            return RECONNECT_PAUSE_S
        if isinstance(error, ApiError):
            raise error
        raise UnreachableError("The stream of events is lost.") from error
