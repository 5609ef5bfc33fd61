"""The interface of step executors to the runner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from engine.layers.attention import StepContext
from engine.models.base import Model


class Executor(ABC):
    """Runs the steps of one model.

    The result is that of ``Model.hidden_states``. An executor may round differently only if the
    runner uses it where start-up measured it to be faster.
    """

    def __init__(self, model: Model) -> None:
        self.model = model

    def serves(self, step: StepContext) -> bool:
        """Whether it can run a step. Only a fused executor may not be able to."""
        return True

    @abstractmethod
    def hidden_states(self, token_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        """As ``Model.hidden_states``, of a step that it ``serves``."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """As ``Model.logits``."""
        return self.model.logits(hidden)


@dataclass(frozen=True, slots=True)
class Executors:
    """The executors of one model, by what they are used for."""

    eager: Executor
    """For steps whose kernels the host launches one by one. It serves all steps."""
    recorded: Executor
    """For steps recorded in a CUDA graph. It serves all steps."""
    fused: Executor | None = None
    """For recorded steps that it serves, where start-up measures it to be faster."""
    resting: Executors | None = None
    """The same without keeping anything for a draft network; None where nothing is kept."""
