"""What only vLLM's workers know of the model: they have its layers and its code, the scheduler
does not.

vLLM has a way for a connector's workers to tell its scheduler something before the first request:
the handshake.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata

from sessiond.connector.foreign import foreign_code
from sessiond.connector.layers import Code, LayerFacts, Layers, Told
from sessiond.domain.errors import SessiondError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

#: Attributes of vLLM's attention layers: what K and V were divided by.
_SCALES = ("_k_scale", "_v_scale")


@dataclass
class WorkerFacts(KVConnectorHandshakeMetadata):
    """What one worker tells."""

    layers: Layers
    code: Code = frozenset()
    doubt: str = ""  #: why that may not be all of the code; empty if it is


def read_worker(vllm_config: VllmConfig) -> WorkerFacts:
    """Return what this worker has resolved and loaded."""
    layers = read_layers(vllm_config)
    try:
        return WorkerFacts(layers, foreign_code(vllm_config))
    except (SessiondError, OSError) as error:
        return WorkerFacts(layers, doubt=str(error))


def read_layers(vllm_config: VllmConfig) -> Layers:
    """Return what this worker's layers have resolved."""
    layers = vllm_config.compilation_config.static_forward_context
    return {
        name: LayerFacts(
            backend=layer.get_attn_backend().get_name(),
            scales=tuple(_numbers(getattr(layer, scale, None)) for scale in _SCALES),
        )
        for name, layer in layers.items()
        if hasattr(layer, "get_attn_backend")
    }


def merged(told: Mapping[tuple[int, int], object]) -> Told:
    """Return what all workers tell; layers that ranks have in common are numbered.

    :param told: by pipeline and tensor rank
    """
    workers = [
        (rank, worker)
        for (_, rank), worker in sorted(told.items())
        if isinstance(worker, WorkerFacts)
    ]
    return Told(
        layers={
            name if rank == 0 else f"{name} of rank {rank}": facts
            for rank, worker in workers
            for name, facts in worker.layers.items()
        },
        code=frozenset().union(*(worker.code for _, worker in workers)),
        doubt=next((worker.doubt for _, worker in workers if worker.doubt), ""),
    )


def _numbers(scale: object) -> tuple[float, ...]:
    if not isinstance(scale, torch.Tensor):
        return ()
    return tuple(float(number) for number in scale.flatten().tolist())
