"""The handshake: how the scheduler's side learns what only the workers know."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sessiond.connector.connector import SessionConnector
from sessiond.connector.frontend import LoraModule
from sessiond.connector.layers import LayerFacts, Told
from sessiond.connector.requests import ArrivingRequest
from sessiond.connector.workers import WorkerFacts, merged, read_layers
from sessiond.domain.engines import ServedAdapter


class AttentionLayer:
    """As much of one of vLLM's as is read."""

    def __init__(self, backend: str, *scales: float) -> None:
        self._k_scale = torch.tensor(scales)
        self._v_scale = torch.tensor(0.5)
        self._backend = backend

    def get_attn_backend(self) -> Any:  # noqa: ANN401 - vLLM's
        return SimpleNamespace(get_name=lambda: self._backend)


class FakeIdentity:
    def __init__(self) -> None:
        self.told: Told | None = None

    def take(self, told: Told) -> None:
        self.told = told


class FakeCoordinator:
    polls = 0

    def __init__(self) -> None:
        self.arrived: list[ArrivingRequest] = []

    def poll(self) -> None:
        self.polls += 1

    def arrive(self, request: ArrivingRequest) -> None:
        self.arrived.append(request)


class FakeAdapters:
    def __init__(self, adapter: ServedAdapter) -> None:
        self.adapter = adapter
        self.met: list[str] = []

    def meet(self, module: LoraModule) -> None:
        self.met.append(module.name)

    def look(self, module: LoraModule) -> ServedAdapter:
        self.meet(module)
        return self.adapter


@pytest.fixture
def connector() -> SessionConnector:
    """A connector without an engine."""
    bare = object.__new__(SessionConnector)
    bare._coordinator = None
    return bare


def set_parts(connector: SessionConnector, **parts: object) -> None:
    """Give it what its start would have made."""
    vars(connector).update(parts)


def config(**layers: object) -> Any:  # noqa: ANN401 - vLLM's
    return SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=layers))


def test_a_worker_tells_backends_and_scales_of_its_layers() -> None:
    facts = read_layers(config(a=AttentionLayer("FLASH_ATTN", 0.25), moe=object()))
    assert facts == {"a": LayerFacts("FLASH_ATTN", ((0.25,), (0.5,)))}


def test_scales_may_be_one_for_each_head_or_none() -> None:
    layer = AttentionLayer("FLASH_ATTN", 0.25, 0.5)
    del layer._v_scale
    assert read_layers(config(a=layer))["a"].scales == ((0.25, 0.5), ())


def test_the_layers_of_all_ranks_are_told_apart() -> None:
    one, two = LayerFacts("A", ((1.0,),)), LayerFacts("A", ((2.0,),))
    told = {
        (0, 1): WorkerFacts({"x": two}),
        (0, 0): WorkerFacts({"x": one}),
        (1, 0): WorkerFacts({"y": two}),  # of the next stage of a pipeline
        (2, 0): "nothing",
    }
    assert merged(told) == Told({"x": one, "x of rank 1": two, "y": two})


def test_the_code_of_all_ranks_counts_and_any_doubt() -> None:
    one, two = frozenset({("m", "aa")}), frozenset({("m", "ab")})
    told = {(0, 0): WorkerFacts({}, one), (0, 1): WorkerFacts({}, two, "a doubt")}
    assert merged(told) == Told({}, one | two, "a doubt")


def test_a_worker_hands_over_its_layers_and_code(
    connector: SessionConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = frozenset({("m", "aa")})
    monkeypatch.setattr("sessiond.connector.workers.foreign_code", lambda _: code)
    connector._vllm_config = config(a=AttentionLayer("FLASH_ATTN", 1.0))
    facts = connector.get_handshake_metadata()
    assert isinstance(facts, WorkerFacts)
    assert (list(facts.layers), facts.code, facts.doubt) == (["a"], code, "")


def test_a_failure_in_a_worker_is_as_if_we_were_not_there(connector: SessionConnector) -> None:
    set_parts(connector, _vllm_config=None)
    assert connector.get_handshake_metadata() is None


def test_the_scheduler_takes_the_fingerprint_then(connector: SessionConnector) -> None:
    identity, coordinator = FakeIdentity(), FakeCoordinator()
    set_parts(connector, _identity=identity, _coordinator=coordinator)
    facts = LayerFacts("A", ((1.0,),))
    connector.set_xfer_handshake_metadata_pp_aware({(0, 0): WorkerFacts({"x": facts})})
    assert identity.told == Told({"x": facts})
    assert coordinator.polls == 1


@pytest.mark.parametrize("side", ["worker", "scheduler that cannot"])
def test_the_handshake_never_ends_an_engine(connector: SessionConnector, side: str) -> None:
    if side != "worker":
        set_parts(connector, _coordinator=FakeCoordinator())  # and no identity
    connector.set_xfer_handshake_metadata_pp_aware({(0, 0): WorkerFacts({})})


PROVEN, CHANGED = ServedAdapter("poet", "p" * 64), ServedAdapter("poet", "", "its files changed")


@pytest.mark.parametrize(
    ("adapter", "about", "skips"),
    [
        (PROVEN, {"cache_salt": "salt"}, False),
        (CHANGED, {"cache_salt": "salt"}, True),  # a call of the gateway without a session
        (CHANGED, {"cache_salt": "salt", "kv_transfer_params": {"sessiond_ticket": "t"}}, True),
        (CHANGED, {}, False),  # as if sessiond was not there
    ],
)
def test_kv_of_an_adapter_that_is_not_proven_is_not_read(
    connector: SessionConnector, adapter: ServedAdapter, about: dict[str, Any], *, skips: bool
) -> None:
    adapters, coordinator = FakeAdapters(adapter), FakeCoordinator()
    set_parts(connector, _adapters=adapters, _coordinator=coordinator)
    asked = request(**about)
    connector._arrive(asked)
    assert asked.skip_reading_prefix_cache is skips
    assert adapters.met == ["poet"]
    assert [each.adapter for each in coordinator.arrived] == [adapter] * bool(
        about.get("kv_transfer_params")
    )


def request(**about: object) -> Any:  # noqa: ANN401 - vLLM's
    lora = SimpleNamespace(lora_name="poet", lora_path="/adapters/poet")
    unsaid = {"cache_salt": None, "kv_transfer_params": None, "prompt_embeds": None}
    return SimpleNamespace(
        **{**unsaid, **about},
        request_id="r",
        lora_request=lora,
        all_token_ids=[1, 2, 3],
        mm_features=[],
        skip_reading_prefix_cache=False,
    )
