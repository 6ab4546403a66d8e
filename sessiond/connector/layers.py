"""What only the workers know: what vLLM has resolved for the layers of a model, and whose code
computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True)
class LayerFacts:
    """What was resolved for one layer."""

    backend: str  #: of its attention
    scales: tuple[tuple[float, ...], ...]  #: of K and of V: one, or one for each head


Layers: TypeAlias = Mapping[str, LayerFacts]
#: Modules from elsewhere than vLLM, each by its name and the digest of its file (or its version).
Code: TypeAlias = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Told:
    """What the workers of an engine tell."""

    layers: Layers = field(default_factory=dict)
    code: Code = frozenset()
    doubt: str = ""  #: why that may not be all of the code; empty if it is
