"""Reads streams of server-sent events, line by line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from sessiond.client.answers import Event
from sessiond.client.decoding import decode
from sessiond.client.errors import NotSessiondError

if TYPE_CHECKING:
    from collections.abc import Iterator


class EventReader:
    """Makes events of lines.

    :ivar last_id: the newest id that was told; what to go on behind
    """

    def __init__(self, last_id: str) -> None:
        self.last_id = last_id
        self._new_id = last_id
        self._data: list[str] = []

    def begin(self) -> dict[str, str]:
        """Begin a new stream; return the header that asks for what comes behind the newest."""
        # What the one before it left unfinished would be told twice.
        self._data, self._new_id = [], self.last_id
        return {"Last-Event-ID": self.last_id} if self.last_id else {}

    def feed(self, line: str) -> Iterator[Event]:
        """Take one line, without its end; yield the event that it ends, if it does.

        :raises NotSessiondError: what the stream tells is no event of sessiond's.
        """
        if line:
            self._field(line)
            return
        data, self._data = "\n".join(self._data), []
        # Only a whole block counts: one that was cut off is told again.
        self.last_id = self._new_id
        if data:
            yield _event(data)

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "id":
            self._new_id = value


def _event(data: str) -> Event:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise NotSessiondError("Its stream has no JSON.") from error
    return decode(Event, value)
