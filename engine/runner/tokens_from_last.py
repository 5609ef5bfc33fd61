"""The tokens that the last stage samples, on their way to the first, which embeds them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from engine.parallel.stage import Stage
from engine.runner.inputs import SampledTokens
from engine.runner.rows import Ints
from kernels.transfer import to_device


class _Expected(NamedTuple):
    """The tokens of one step."""

    step_id: int
    rows: Ints
    positions: Ints
    arrived: Callable[[], torch.Tensor]


class TokensFromLast:
    """Takes them as late as possible: stages compute other steps while tokens are on their way."""

    def __init__(self, stage: Stage, tokens: torch.Tensor) -> None:
        """tokens: where they are stored, at [row, position]."""
        self._stage, self._tokens = stage, tokens
        self._expected: deque[_Expected] = deque()

    def expect(self, step_id: int, sampled: SampledTokens) -> None:
        arrived = self._stage.receive_tokens(len(sampled.rows))
        self._expected.append(_Expected(step_id, sampled.rows, sampled.positions, arrived))

    def take_for(self, rows: Ints) -> None:
        """Before a step computes these rows."""
        while any(np.isin(rows, one.rows).any() for one in self._expected):
            self._take()

    def take_until(self, step_id: int) -> None:
        """Before rows of this step may be another request's."""
        while self._expected and self._expected[0].step_id <= step_id:
            self._take()

    def _take(self) -> None:
        one = self._expected.popleft()
        at = to_device(np.stack((one.rows, one.positions)), self._tokens.device)
        self._tokens[at[0], at[1]] = one.arrived()
