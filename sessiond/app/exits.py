"""How a command says that it cannot be run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sessiond.domain.errors import SessiondError


def refusal_text(command: str, error: SessiondError, *, as_json: bool) -> str:
    """Return the line that ``sessiond COMMAND`` prints for *error*."""
    if as_json:
        told = {"code": error.code, "message": error.message, "hint": error.hint}
        return json.dumps(told) + "\n"
    hint = f" {error.hint}" if error.hint else ""
    return f"sessiond {command}: {error.message}{hint}\n"
