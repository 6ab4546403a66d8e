"""How a client reaches its daemon."""

from __future__ import annotations

import ssl
from typing import Any, Final

import httpx

from sessiond.client.errors import ApiError

#: Where ``sessiond serve`` listens by default; a test compares the two.
DEFAULT_URL: Final = "http://127.0.0.1:8600"
#: No proxy and no .netrc: what is set for the web must not see or replace the token.
HTTP_ARGUMENTS: Final[dict[str, Any]] = {"trust_env": False, "verify": ssl.create_default_context()}


def checked_url(url: str) -> str:
    """Return the daemon's URL in its short form.

    :raises ApiError: it is not one.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise _invalid(f"The URL is not valid: {error}.") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise _invalid("The URL must begin with http:// or https:// and a host.")
    return url.rstrip("/").removesuffix("/v1")


def authorization(token: str) -> dict[str, str]:
    """Return the header that carries a token.

    :raises ApiError: it cannot be sent.
    """
    if not (token.isascii() and token.isprintable()):
        raise _invalid("A token has printable ASCII characters only.")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _invalid(detail: str) -> ApiError:
    return ApiError("invalid_input", detail)
