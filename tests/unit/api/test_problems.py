from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.api.problems import STATUS, problem_response, result_response
from sessiond.domain.errors import SessiondError, StoreError
from sessiond.service.reports import problem_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from sessiond.testing.world import World


def tree(root: type[SessiondError] = SessiondError) -> Iterator[type[SessiondError]]:
    yield root
    for branch in root.__subclasses__():
        yield from tree(branch)


KINDS = list(tree())


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_a_status(kind: type[SessiondError]) -> None:
    status = STATUS[kind.code]
    assert status >= HTTPStatus.BAD_REQUEST
    assert kind.retryable <= (status in {409, 429, 502, 503, 504, 507})


def test_the_table_knows_nothing_else() -> None:
    assert STATUS.keys() - {kind.code for kind in KINDS} == {"lease_expired"}


def test_codes_are_not_shared_by_accident() -> None:
    codes = [kind.code for kind in KINDS]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_operation_shows_the_same_problem(kind: type[SessiondError]) -> None:
    assert result_response(problem_of(kind())).body == problem_response(kind()).body


@given(st.lists(st.sampled_from(["srv", "home", "x-1", "läufe"]), min_size=2))
def test_paths_of_the_machine_are_not_shown(parts: list[str]) -> None:
    path = "/" + "/".join(parts)
    body = bytes(problem_response(StoreError(f"Reading {path} failed: '{path}'.")).body).decode()
    assert parts[0] not in body
    assert "failed" in body


def test_urls_are_shown() -> None:
    body = bytes(problem_response(StoreError("See http://127.0.0.1:8000/v1/models.")).body)
    assert b"http://127.0.0.1:8000/v1/models" in body


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/v1/nowhere", 404, "not_found"),
        ("PUT", "/v1/sessions", 405, "method_not_allowed"),
        ("GET", "/v1/sessions/nobody", 404, "session_not_found"),
        ("DELETE", "/v1/sessions/nobody", 404, "session_not_found"),
        ("POST", "/v1/sessions/nobody/suspend", 404, "session_not_found"),
        ("POST", "/v1/sessions/nobody/resume", 404, "session_not_found"),
        ("POST", "/v1/sessions/nobody/ticket", 404, "session_not_found"),
        ("GET", "/v1/sessions/nobody/probe", 404, "session_not_found"),
        ("GET", "/v1/sessions/nobody/events", 404, "session_not_found"),
        ("GET", "/v1/sessions/nobody/snapshots", 404, "session_not_found"),
        ("GET", "/v1/operations/op-0", 404, "operation_not_found"),
        ("GET", "/v1/engines/none", 404, "engine_not_found"),
        ("GET", "/v1/sessions?limit=0", 422, "invalid_input"),
        ("GET", "/v1/sessions?sort=x", 422, "invalid_input"),
        ("POST", "/v1/sessions/nobody/suspend?wait=nan", 422, "invalid_input"),
    ],
)
async def test_every_error_is_a_problem_document(
    api: httpx.AsyncClient, method: str, path: str, status: int, code: str
) -> None:
    response = await api.request(method, path)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem.keys() == {"type", "title", "status", "detail", "code", "hint", "retryable"}
    assert (problem["status"], problem["code"]) == (status, code)


@pytest.mark.anyio
async def test_a_bug_shows_nothing_of_itself(
    world: World, api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(world.registry, "check", broken)
    response = await api.get("/readyz")
    assert response.status_code == 500
    assert response.json()["code"] == "internal_error"
    assert "secret" not in response.text
