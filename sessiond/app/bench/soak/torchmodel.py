"""The checkpoint in float32, computed by transformers: no vLLM, no sessiond, no cache on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class TorchModel:
    """A causal language model with the KV of one sequence."""

    def __init__(self, folder: Path) -> None:
        import torch  # noqa: PLC0415 - seconds to import
        from transformers import AutoModelForCausalLM, DynamicCache  # noqa: PLC0415 - the same
        from transformers.utils import logging  # noqa: PLC0415 - the same

        quiet: Any = logging
        quiet.disable_progress_bar()
        self._torch: Any = torch
        loader: Any = AutoModelForCausalLM
        self._model = loader.from_pretrained(folder, dtype=torch.float32).eval()
        self._cache: Any = DynamicCache(config=self._model.config)

    def rewind(self, tokens: int) -> None:
        """Forget everything behind the first so many tokens."""
        surplus = self._cache.get_seq_length() - tokens
        if surplus:
            self._cache.crop(-surplus)

    def feed(self, ids: Sequence[int], last: int) -> NDArray[np.float32]:
        """Go on with these tokens; return the log-probabilities after each of the *last* ones."""
        torch = self._torch
        with torch.inference_mode():
            hidden = self._model.model(
                input_ids=torch.tensor([list(ids)]), past_key_values=self._cache, use_cache=True
            ).last_hidden_state
            logits = self._model.lm_head(hidden[0, -last:])
            found: NDArray[np.float32] = torch.log_softmax(logits, dim=-1).numpy()
        return found
