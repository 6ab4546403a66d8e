"""The handshake: how the scheduler's side learns what only the workers know."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sessiond.connector.connector import SessionConnector
from sessiond.connector.layers import LayerFacts, Layers
from sessiond.connector.workers import WorkerFacts, merged, read_layers


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
        self.layers: Layers | None = None

    def take(self, layers: Layers) -> None:
        self.layers = layers


class FakeCoordinator:
    polls = 0

    def poll(self) -> None:
        self.polls += 1


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
    assert facts == WorkerFacts({"a": LayerFacts("FLASH_ATTN", ((0.25,), (0.5,)))})


def test_scales_may_be_one_for_each_head_or_none() -> None:
    layer = AttentionLayer("FLASH_ATTN", 0.25, 0.5)
    del layer._v_scale
    assert read_layers(config(a=layer)).layers["a"].scales == ((0.25, 0.5), ())


def test_the_layers_of_all_ranks_are_told_apart() -> None:
    one, two = LayerFacts("A", ((1.0,),)), LayerFacts("A", ((2.0,),))
    told = {(0, 1): WorkerFacts({"x": two}), (0, 0): WorkerFacts({"x": one}), (1, 0): "nothing"}
    assert merged(told) == {"x": one, "x of rank 1": two}


def test_a_worker_hands_its_layers_over(connector: SessionConnector) -> None:
    connector._vllm_config = config(a=AttentionLayer("FLASH_ATTN", 1.0))
    assert isinstance(connector.get_handshake_metadata(), WorkerFacts)


def test_a_failure_in_a_worker_is_as_if_we_were_not_there(connector: SessionConnector) -> None:
    set_parts(connector, _vllm_config=None)
    assert connector.get_handshake_metadata() is None


def test_the_scheduler_takes_the_fingerprint_then(connector: SessionConnector) -> None:
    identity, coordinator = FakeIdentity(), FakeCoordinator()
    set_parts(connector, _identity=identity, _coordinator=coordinator)
    facts = LayerFacts("A", ((1.0,),))
    connector.set_xfer_handshake_metadata_pp_aware({(0, 0): WorkerFacts({"x": facts})})
    assert identity.layers == {"x": facts}
    assert coordinator.polls == 1


@pytest.mark.parametrize("side", ["worker", "scheduler that cannot"])
def test_the_handshake_never_ends_an_engine(connector: SessionConnector, side: str) -> None:
    if side != "worker":
        set_parts(connector, _coordinator=FakeCoordinator())  # and no identity
    connector.set_xfer_handshake_metadata_pp_aware({(0, 0): WorkerFacts({})})
