"""What vLLM has resolved for the layers of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class LayerFacts:
    """What was resolved for one layer."""

    backend: str  #: of its attention
    scales: tuple[tuple[float, ...], ...]  #: of K and of V: one, or one for each head


Layers: TypeAlias = Mapping[str, LayerFacts]
