"""The ways in which an engine's weights can change while it runs, each by itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sessiond.connector.refusals import weights_may_change

VARIABLES = ("VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def config(*, sleeps: bool = False, transfers: bool = False) -> Any:  # noqa: ANN401 - vLLM's, as much of it as is read
    return SimpleNamespace(
        model_config=SimpleNamespace(enable_sleep_mode=sleeps),
        weight_transfer_config=SimpleNamespace(backend="nccl") if transfers else None,
    )


@pytest.mark.parametrize("value", ["", "0"])
@pytest.mark.parametrize("name", VARIABLES)
def test_an_engine_without_any_of_them(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert weights_may_change(config()) == ""


@pytest.mark.parametrize(
    ("variable", "options", "told"),
    [
        ("VLLM_SERVER_DEV_MODE", {}, "development mode"),
        ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", {}, "LoRA updates"),
        ("", {"sleeps": True}, "sleep mode"),
        ("", {"transfers": True}, "weight transfer"),
        (
            "VLLM_SERVER_DEV_MODE",
            {"sleeps": True, "transfers": True},
            "development mode, sleep mode, weight transfer",
        ),
    ],
)
def test_each_way_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, options: dict[str, bool], told: str
) -> None:
    if variable:
        monkeypatch.setenv(variable, "1")
    assert weights_may_change(config(**options)) == told
