from __future__ import annotations

import pytest

from sessiond.domain.engines import VLLM_RANGE, vllm_range_text, vllm_supported


@pytest.mark.parametrize(
    "version",
    ["0.32.0", "0.32.1", "0.32.99", "0.32.0+cpu", "0.32.1+cu129.gabcdef", "0.32.0.post1"],
)
def test_the_tested_range(version: str) -> None:
    assert vllm_supported(version)


@pytest.mark.parametrize(
    "version",
    [
        "0.31.9", "0.33.0", "1.32.0", "0.3.2", "0.32", "0", "", "0.32.x", "v0.32.0", "unknown",
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
    assert vllm_range_text() == ">=0.32.0, <0.33.0"
