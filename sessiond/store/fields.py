"""Typed access to the values of a parsed JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from sessiond.domain.errors import StoreCorruptError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Far beyond any time in seconds; larger integers do not fit a float.
_MAX_NUMBER = 1e300


class Fields:
    """The values of one JSON object; each accessor proves the type that it returns.

    A value of a wrong type raises :class:`StoreCorruptError`, as does one that is missing.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def text(self, name: str) -> str:
        """Return a string."""
        value = self._value(name)
        return value if isinstance(value, str) else self._refuse(name)

    def later_text(self, name: str) -> str:
        """Return a string that files of earlier versions lack; there it is empty."""
        return self.text(name) if name in self._values else ""

    def number(self, name: str) -> float:
        """Return a number, as a float."""
        value = self._value(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse(name)
        if abs(value) > _MAX_NUMBER:
            self._refuse(name)
        return float(value)

    def later_number(self, name: str) -> float:
        """Return a number that files of earlier versions lack; there it is zero."""
        return self.number(name) if name in self._values else 0.0

    def optional_number(self, name: str) -> float | None:
        """Return a number, or ``None`` for null."""
        return None if self._value(name) is None else self.number(name)

    def count(self, name: str) -> int:
        """Return an integer of at least zero that fits 63 bits."""
        value = self._value(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
            self._refuse(name)
        return int(value)

    def later_count(self, name: str) -> int:
        """Return a :meth:`count` that files of earlier versions lack; there it is zero."""
        return self.count(name) if name in self._values else 0

    def flag(self, name: str) -> bool:
        """Return a boolean."""
        value = self._value(name)
        return value if isinstance(value, bool) else self._refuse(name)

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Return an object."""
        value = self._value(name)
        return value if isinstance(value, dict) else self._refuse(name)

    def optional_mapping(self, name: str) -> Mapping[str, Any] | None:
        """Return an object, or ``None`` for null."""
        return None if self._value(name) is None else self.mapping(name)

    def later_mapping(self, name: str) -> Mapping[str, Any] | None:
        """Return an object, or ``None`` for null; files of earlier versions lack it."""
        return self.optional_mapping(name) if name in self._values else None

    def mappings(self, name: str) -> list[Mapping[str, Any]]:
        """Return a list of objects, as they are."""
        return [item if isinstance(item, dict) else self._refuse(name) for item in self._list(name)]

    def objects(self, name: str) -> list[Fields]:
        """Return a list of objects."""
        return [Fields(item) for item in self.mappings(name)]

    def texts(self, name: str) -> list[str]:
        """Return a list of strings."""
        return [item if isinstance(item, str) else self._refuse(name) for item in self._list(name)]

    def _list(self, name: str) -> list[Any]:
        value = self._value(name)
        return value if isinstance(value, list) else self._refuse(name)

    def _value(self, name: str) -> Any:  # noqa: ANN401 - any JSON value
        if name not in self._values:
            self._refuse(name)
        return self._values[name]

    def _refuse(self, name: str) -> NoReturn:
        raise StoreCorruptError(f"The field {name!r} is missing or of the wrong type.")
