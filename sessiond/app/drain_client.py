"""Asks the daemon to drain engines. Standard library only: it runs beside vLLM."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TOKEN_VARIABLE = "SESSIOND_TOKEN"  # noqa: S105 - a variable's name
URL_VARIABLE = "SESSIOND_URL"
#: The daemon's default address; a test compares it with the daemon's settings.
DEFAULT_URL = "http://127.0.0.1:8600"

_MAX_DEADLINE_S = 3600.0
#: The daemon answers within the deadline; so much longer is waited for the answer.
_ON_THE_WAY_S = 2.0
_MAX_ANSWER_BYTES = 64 << 20
_SHOWN = 20  #: sessions that could not be stored, by name

#: What a daemon that is none, or of another version, may make of its answer.
_STRANGE = (
    OSError,
    http.client.HTTPException,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
)


@dataclass(frozen=True)
class Drained:
    """What came of a drain."""

    complete: bool  #: whether it is certain that there is nothing left to store
    text: str


@dataclass(frozen=True)
class Drain:
    """What the daemon is asked for, and for which engines: one of the last two tells."""

    url: str  #: of the daemon
    deadline_s: float
    launch: str = ""  #: names what started them
    engine_url: str = ""  #: where they serve

    def run(self) -> Drained:
        """Have the engines drained, all at once. Raises nothing."""
        end_s = time.monotonic() + self.deadline_s
        try:
            found = self._call("GET", "/v1/engines", None, end_s)["engines"]
            mine = [str(one["engine_id"]) for one in found if self._is_meant(one)]
            if not mine:
                return Drained(False, f"the daemon at {self.url} knows no such engine")  # noqa: FBT003 - the field says it
            return _summary(self._drain_all(mine, end_s))
        except _STRANGE as error:
            return Drained(False, f"not drained by {self.url}: {_told(error)}")  # noqa: FBT003 - the same

    def _is_meant(self, engine: Mapping[str, Any]) -> bool:
        if self.launch:
            return bool(engine["launch"] == self.launch)
        return _comparable(engine["url"]) == _comparable(self.engine_url)

    def _drain_all(self, engine_ids: Sequence[str], end_s: float) -> list[dict[str, Any]]:
        """Drain them side by side: there is one for each data-parallel rank."""
        answers: dict[str, dict[str, Any] | BaseException] = {}

        def drain(engine_id: str) -> None:
            try:
                answers[engine_id] = self._drain(engine_id, end_s)
            except _STRANGE as error:
                answers[engine_id] = error

        # Not of a pool: the interpreter's end would wait for it.
        threads = [threading.Thread(target=drain, args=(one,), daemon=True) for one in engine_ids]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for answer in answers.values():
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers.values() if isinstance(answer, dict)]

    def _drain(self, engine_id: str, end_s: float) -> dict[str, Any]:
        body = {"deadline_s": max(0.0, end_s - time.monotonic())}
        return self._call("POST", f"/v1/engines/{engine_id}/drain", body, end_s)

    def _call(self, method: str, path: str, body: object, end_s: float) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        token = os.environ.get(TOKEN_VARIABLE)
        if token:
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(  # noqa: S310 - the operator's own URL
            f"{self.url.rstrip('/')}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers=headers,
            method=method,
        )
        # No proxy: what is set for the web must not see the token.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        timeout_s = max(0.0, end_s - time.monotonic()) + _ON_THE_WAY_S
        with opener.open(request, timeout=timeout_s) as answer:
            value: dict[str, Any] = json.loads(answer.read(_MAX_ANSWER_BYTES))
            return value


def parsed_deadline_s(text: str) -> float:
    """Return the seconds that an option says.

    :raises argparse.ArgumentTypeError: they are none, or too many.
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= _MAX_DEADLINE_S:  # not a number is neither
        raise argparse.ArgumentTypeError(f"{text!r} is not 0 to {_MAX_DEADLINE_S:g} seconds")
    return value


def _comparable(url: str) -> str:
    return url.rstrip("/").replace("//localhost", "//127.0.0.1", 1)


def _told(error: BaseException) -> str:
    if not isinstance(error, urllib.error.HTTPError):
        return str(getattr(error, "reason", None) or error)
    try:
        problem = json.loads(error.read(_MAX_ANSWER_BYTES))
        return f"{problem['code']}: {problem['detail']} {problem['hint']}".strip()
    except _STRANGE:
        return f"HTTP status {error.code}"
    finally:
        error.close()


def _summary(reports: Sequence[Mapping[str, Any]]) -> Drained:
    saved = sum(len(report["saved"]) for report in reports)
    unsaved = [one for report in reports for one in report["unsaved"]]
    text = f"drained: {saved} sessions stored, {len(unsaved)} not"
    for one in unsaved[:_SHOWN]:
        text += f"\n  {one['tenant']}/{one['session_id']}: {one['tokens']} tokens, {one['code']}"
    if len(unsaved) > _SHOWN:
        text += f"\n  and {len(unsaved) - _SHOWN} more"
    for cause in (one for report in reports for one in report["causes"]):
        text += f"\n  {cause['reason']}: {cause['sentence']}"
    return Drained(all(report["complete"] for report in reports), text)
