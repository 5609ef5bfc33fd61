"""The plain executor: layer by layer, as the model says."""

from __future__ import annotations

import torch

from engine.executors.base import Executor
from engine.layers.attention import StepContext


class LayerByLayer(Executor):
    """Serves every step of every model."""

    def hidden_states(self, token_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        return self.model.hidden_states(token_ids, step)
