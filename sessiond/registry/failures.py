"""The one place where the database's errors become sessiond's."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from sessiond.domain.errors import (
    ConflictError,
    InvalidInputError,
    OperationInProgressError,
    RegistryUnavailableError,
    SessiondError,
    SessionExistsError,
)
from sessiond.registry.dialects import violated_constraint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: By constraint (PostgreSQL) and by the columns that it is about (SQLite).
_VIOLATIONS: Final[Mapping[str, type[SessiondError]]] = {
    "pk_sessions": SessionExistsError,
    "sessions.tenant, sessions.session_id": SessionExistsError,
    "uq_operations_running": OperationInProgressError,
    "operations.tenant, operations.session_id": OperationInProgressError,
    "pk_operations": ConflictError,
    "operations.operation_id": ConflictError,
}


@contextmanager
def domain_errors() -> Iterator[None]:
    """Turn what the database raises inside into domain errors.

    :raises SessiondError: as named by the constraint that was violated;
        ``InvalidInputError`` for a value that the database cannot hold;
        ``RegistryUnavailableError`` for everything else.
    """
    try:
        yield
    except IntegrityError as error:
        known = _VIOLATIONS.get(violated_constraint(error) or "")
        if known is None:
            raise  # an invariant of this package was broken: not for the caller to handle
        raise known from error
    except DataError as error:
        raise InvalidInputError("The database cannot hold a value of this request.") from error
    except (DBAPIError, PoolTimeoutError, sqlite3.Error) as error:
        raise RegistryUnavailableError(_unavailable(error)) from error


def _unavailable(error: DBAPIError | PoolTimeoutError | sqlite3.Error) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else error
    first_line = str(cause).partition("\n")[0]
    return f"The registry's database does not answer: {first_line}"
