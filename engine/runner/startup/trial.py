"""Runs a few prompts before the engine serves, to measure memory, or the range of keys and
values."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.attention.base import AttentionBackend
from engine.executors.base import Executor
from engine.layers.attention import StepContext
from engine.models.base import ModelFacts
from engine.runner.inputs import ChunkFields, build_inputs
from engine.runner.memory import PagedCache
from engine.runner.rows import RowTable
from engine.runner.states import StateCache
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import Admission, Chunk


class Trial:
    """One step over whole prompts, with a cache of its own. The first prompt is the longest."""

    def __init__(
        self,
        model: ModelFacts,
        prompts: Sequence[list[int]],
        block_size: int,
        *,
        dtype: torch.dtype,
        kv_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """dtype: of the model; kv_dtype: of its stored keys and values."""
        self._block_size = block_size
        longest = len(prompts[0])
        blocks_each = -(-longest // block_size)
        states = None
        if model.recurrent is not None:
            states = StateCache(model.recurrent, len(prompts), 0, dtype=dtype, device=device)
        self.cache = PagedCache(
            model,
            blocks_each * len(prompts),
            block_size,
            states=states,
            dtype=kv_dtype,
            device=device,
        )
        self._table = RowTable(len(prompts), longest, block_size, device)
        for row, token_ids in enumerate(prompts):
            first = row * blocks_each
            self._table.admit(
                Admission(
                    row=row,
                    request_id="trial",
                    token_ids=token_ids,
                    num_prompt_tokens=len(token_ids),
                    block_ids=[range(first, first + blocks_each)],
                    params=SamplingParams(),
                )
            )
        self._chunks = [
            Chunk(row, "trial", 0, len(token_ids), True) for row, token_ids in enumerate(prompts)
        ]

    def run(self, executor: Executor, attention: AttentionBackend) -> torch.Tensor:
        """The hidden states of all tokens: [num_tokens, hidden]."""
        fields, states = ChunkFields.read(self._chunks), self.cache.states
        inputs = build_inputs(fields, self._table, self._block_size)
        step = StepContext(
            inputs.positions,
            [inputs.groups[0].prepared(attention, self._block_size)],
            self.cache.layers,
            states=None if states is None else states.step(fields),
        )
        return executor.hidden_states(inputs.token_ids, step)
