from __future__ import annotations

from dataclasses import replace

import pytest

from sessiond.domain.engines import (
    VLLM_RANGE,
    ServedAdapter,
    vllm_range_text,
    vllm_supported,
)
from sessiond.domain.reasons import Cause, Reason
from sessiond.testing.values import an_engine


@pytest.mark.parametrize(
    "version",
    [
        "0.31.0",
        "0.31.9",
        "0.32.0",
        "0.32.1",
        "0.32.99",
        "0.32.0+cpu",
        "0.32.1+cu129.gabcdef",
        "0.32.0.post1",
    ],
)
def test_the_tested_range(version: str) -> None:
    assert vllm_supported(version)


@pytest.mark.parametrize(
    "version",
    [
        "0.30.9", "0.33.0", "1.32.0", "0.3.2", "0.32", "0", "", "0.32.x", "v0.32.0", "unknown",
        "0.32.0rc1", "0.32.1rc2+cpu", "0.32.1.dev7", "0.32.0.dev12+gabc", "0.33.0.dev1",
        "0.32.0.post1.dev2", "0.32.0 ", "\u0660.32.0", "0.32.0.1", "-0.32.0",
    ],
)  # fmt: skip
def test_everything_else_was_not_tested(version: str) -> None:
    assert not vllm_supported(version)


def test_the_first_is_inside_and_the_last_is_not() -> None:
    first, beyond = (".".join(map(str, version)) for version in VLLM_RANGE)
    assert vllm_supported(first)
    assert not vllm_supported(beyond)


def test_the_range_is_told_as_pip_writes_it() -> None:
    assert vllm_range_text() == ">=0.31.0, <0.33.0"


POET, NEW = ServedAdapter("poet", digest="p"), ServedAdapter("new", unproven="it is read")


def test_models_and_adapters_are_found_by_name() -> None:
    engine = an_engine(adapters=(POET, NEW))
    assert [engine.serves(name) for name in ("smol", "poet", "new", "", "p")] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert (engine.adapter("poet"), engine.adapter("smol")) == (POET, None)


def test_adapters_are_found_by_proved_content_only() -> None:
    engine = an_engine(adapters=(NEW, POET, replace(POET, name="bard")))
    assert engine.adapter_of("p") == POET
    assert engine.adapter_of("") is None


def test_an_unproven_adapter_says_why() -> None:
    assert POET.cause() is None
    assert NEW.cause() == Cause(Reason.ADAPTER_UNPROVEN, "adapter 'new': it is read")
