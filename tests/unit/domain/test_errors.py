from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from sessiond.domain import errors
from sessiond.domain.errors import SessiondError
from sessiond.domain.reasons import EXPLANATIONS, Cause, Reason


def family(error: type[SessiondError]) -> Iterator[type[SessiondError]]:
    yield error
    for child in error.__subclasses__():
        yield from family(child)


ALL = [error for error in family(SessiondError) if error.__module__ == errors.__name__]


def drawn_tree() -> dict[str, str]:
    """Return the parents of the classes in the module's docstring, by their depth there."""
    parents: dict[str, str] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ([│├└─ ]*)([A-Za-z]+Error)\b", line)
        if match:
            depth = len(match[1]) // 4
            parents[match[2]] = above[depth - 1] if depth else ""
            above[depth:] = [match[2]]
    return parents


def test_the_drawn_tree_is_the_real_one() -> None:
    real = {
        error.__name__: "" if error is SessiondError else error.__bases__[0].__name__
        for error in ALL
    }
    assert drawn_tree() == real


def test_codes_are_unique() -> None:
    assert len({error.code for error in ALL}) == len(ALL)


@pytest.mark.parametrize("error", ALL)
def test_a_code_is_a_slug(error: type[SessiondError]) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", error.code)


@pytest.mark.parametrize("error", ALL)
def test_each_class_has_its_own_code(error: type[SessiondError]) -> None:
    assert "code" in vars(error)


@pytest.mark.parametrize("error", ALL)
def test_the_docstring_is_the_default_message(error: type[SessiondError]) -> None:
    assert error().message == (error.__doc__ or "").strip()
    assert error().message.endswith(".")


@pytest.mark.parametrize("error", ALL)
def test_a_given_message_counts(error: type[SessiondError]) -> None:
    assert error("It did not.").message == str(error("It did not.")) == "It did not."


@pytest.mark.parametrize("error", ALL)
def test_causes_are_told_in_words(error: type[SessiondError]) -> None:
    cause, other = Cause(Reason.STORE_FULL, "3 bytes"), Cause(Reason.DEADLINE)
    told = error(causes=(cause, other))
    assert told.causes == (cause, other)
    assert told.message == "The store's file system has no room left (3 bytes)."
    assert told.hint == EXPLANATIONS[Reason.STORE_FULL].hint
    assert (error().causes, error().hint) == ((), error.hint)


def test_the_unprepared_case_is_not_retryable() -> None:
    assert not SessiondError.retryable
