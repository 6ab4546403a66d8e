from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessiond.testing.served import served_world

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessiond.testing.world import World

pytestmark = pytest.mark.anyio
METHODS = {"get", "post", "patch", "delete"}


def operations(schema: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, operation)
        for path, item in schema["paths"].items()
        for method, operation in item.items()
        if method in METHODS
    ]


async def test_every_call_is_described(api: httpx.AsyncClient) -> None:
    schema = (await api.get("/openapi.json")).json()
    found = operations(schema)
    assert len(found) >= 24
    for path, method, operation in found:
        where = f"{method} {path}"
        assert len(operation["description"]) > 20, where
        content = operation["responses"]["default"]["content"]
        kind = "json" if "gateway" in operation.get("tags", ()) else "problem+json"
        assert list(content) == [f"application/{kind}"], where
        if path.startswith("/v1"):
            assert operation["security"], where
    assert "HTTPValidationError" not in schema["components"]["schemas"]


async def test_every_reference_leads_somewhere(api: httpx.AsyncClient) -> None:
    schema = (await api.get("/openapi.json")).json()
    names = set(schema["components"]["schemas"])

    def references(value: object) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if "$ref" in value else []
            return own + [ref for part in value.values() for ref in references(part)]
        if isinstance(value, list):
            return [ref for part in value for ref in references(part)]
        return []

    found = {ref.removeprefix("#/components/schemas/") for ref in references(schema)}
    assert found == names


async def test_every_answer_has_the_form_that_is_promised(
    world: World, api: httpx.AsyncClient
) -> None:
    world.start_engine()
    schema = (await api.get("/openapi.json")).json()
    made = await api.post("/v1/sessions", json={"session_id": "s"})
    promised = schema["components"]["schemas"]["SessionOut"]
    assert set(made.json()) == set(promised["properties"])


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["session_id", "model", "idle_timeout_s", "pinned", "dry_run", "has_snapshot", "x"]
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    where=st.sampled_from(
        [
            ("POST", "/v1/sessions"),
            ("PATCH", "/v1/sessions/some"),
            ("POST", "/v1/admin/purge"),
            ("POST", "/v1/sessions/some/suspend"),
            ("POST", "/v1/sessions/some/resume"),
            ("POST", "/v1/sessions/some/ticket"),
        ]
    ),
    body=st.dictionaries(FIELDS, JUNK, max_size=4) | JUNK,
)
def test_no_body_breaks_the_service(
    junk_client: JunkClient, where: tuple[str, str], body: object
) -> None:
    response = junk_client.send(*where, body)
    assert response.status_code < 500 or response.json()["code"] == "no_engine"
    if response.status_code >= 400:
        assert response.headers["content-type"] == "application/problem+json"


class JunkClient:
    """Sends JSON, also such that JSON does not have, to a served world."""

    def __init__(self, url: str) -> None:
        self._url = url

    def send(self, method: str, path: str, body: object) -> httpx.Response:
        content = json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        return httpx.request(method, self._url + path, content=content, headers=headers)


@pytest.fixture
def junk_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JunkClient]:
    with served_world(tmp_path_factory.mktemp("junk")) as served:
        yield JunkClient(served.url)
