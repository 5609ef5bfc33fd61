"""CUDA graphs on a CPU: what they do is done again at each replay, on the same static memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from engine.attention.base import AttentionBatch, AttentionShape, DeviceBatch, StepAttention
from engine.attention.torch_ref import TorchAttention, TorchStepAttention
from engine.lora.slots import AdapterSlots
from engine.runner import forward
from engine.runner.drafts.drafting import ChainDrafting
from engine.runner.drafts.graphs import DraftGraphs
from engine.runner.graphs import sized
from engine.runner.graphs.steps import StepGraphs
from engine.runner.inputs import ChunkFields
from engine.runner.runner import TorchRunner
from kernels import cuda
from tests.engine.runner.conftest import BLOCK_SIZE

MAX_QUERIES = 8


class EmulatedGraph:
    def __init__(self, compute: Callable[[], torch.Tensor], out: torch.Tensor) -> None:
        self._compute = compute
        self._out = out

    @torch.inference_mode()
    def replay(self) -> None:
        self._out.copy_(self._compute())


def record(compute: Callable[[], torch.Tensor], pool: object) -> tuple[EmulatedGraph, torch.Tensor]:
    out = compute()
    return EmulatedGraph(compute, out), out


def step_inputs(
    tokens: torch.Tensor,
    block_table: torch.Tensor,
    rows: torch.Tensor,
    computed: torch.Tensor,
    cu_queries: torch.Tensor,
    *,
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    seq_lens: torch.Tensor,
    batch_table: torch.Tensor,
    block_size: int,
    sent_rows: torch.Tensor | None = None,
) -> None:
    """As the kernel of that name."""
    assert rows.is_contiguous()
    assert computed.is_contiguous()
    if sent_rows is not None:
        sent_rows.copy_(rows)
    for seq, row in enumerate(rows.tolist()):
        start, end = cu_queries[seq : seq + 2].tolist()
        if row < 0:
            seq_lens[seq], token_ids[start:end], positions[start:end] = 0, 0, 0
            slots[start:end] = -1
            continue
        places = torch.arange(end - start) + int(computed[seq])
        assert int(places[-1]) < tokens.shape[1], "a place that the table does not have"
        blocks = block_table[row, places // block_size].long()
        seq_lens[seq] = int(places[-1]) + 1
        token_ids[start:end], positions[start:end] = tokens[row, places], places
        slots[start:end] = blocks * block_size + places % block_size
        num_blocks = -(-int(seq_lens[seq]) // block_size)
        batch_table[seq, :num_blocks] = block_table[row, :num_blocks]


@dataclass(frozen=True, slots=True)
class EmulatedDecode:
    """Attention of a step, which another kernel could do."""

    attend: TorchStepAttention
    plain_batch: DeviceBatch | None

    def __call__(self, *arguments: Any, **options: Any) -> torch.Tensor:
        return self.attend(*arguments, **options)


class EmulatedAttention(TorchAttention):
    """Decodes from device memory alone."""

    sharing: AttentionShape | None = None
    max_decode_queries: int = MAX_QUERIES

    def __init__(self, windows: Sequence[int | None]) -> None:
        """windows: of the layer groups, behind which nothing may be read."""
        super().__init__(torch.device("cpu"), torch.float32)
        self._windows = windows

    def prepare_decode(
        self, batch: DeviceBatch, block_size: int, num_queries: int = 1
    ) -> EmulatedDecode:
        seq_lens = batch.seq_lens.numpy().astype(np.int64)
        size = len(seq_lens)
        attend = self.prepare(
            AttentionBatch(
                np.full(size, num_queries),
                np.maximum(seq_lens, num_queries),
                np.arange(size),
                batch.block_table,
                window=self._windows[batch.group],
            ),
            block_size,
        )
        return EmulatedDecode(attend, batch)


class EmulatedPrompts(TorchAttention):
    """Attends with a lone prompt from device memory alone; nothing is known of the other rows."""

    captures_prompts = True

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), torch.float32)

    def prepare_prompt(self, batch: DeviceBatch, max_num_tokens: int) -> StepAttention:
        num_tokens, seq_len = int(batch.cu_queries[1]), int(batch.seq_lens[0])
        assert num_tokens <= max_num_tokens
        attend = self.prepare(
            AttentionBatch(
                np.array([num_tokens]), np.array([seq_len]), np.array([0]), batch.block_table
            ),
            BLOCK_SIZE,
        )

        def attend_and_poison(q: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
            assert len(q) == max_num_tokens
            out = torch.full_like(q, math.nan)
            out[:num_tokens] = attend(q[:num_tokens], *rest, **options)
            return out

        return attend_and_poison


@dataclass
class Count:
    num_runs: int = 0
    num_adapted: int = 0


class Counted(Count):
    """Graphs that count the steps they run."""

    def __init__(self, graphs: Any) -> None:
        super().__init__()
        self._graphs = graphs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graphs, name)

    def run(self, *arguments: Any, **options: Any) -> Any:
        self.num_runs += 1
        self.num_adapted += options.get("adapted", False)
        return self._graphs.run(*arguments, **options)


class CountedSteps(Counted):
    """Apart by whether they check drafts."""

    def __init__(self, graphs: StepGraphs) -> None:
        super().__init__(graphs)
        self.decoding, self.checking = Count(), Count()

    def run(self, *arguments: Any, **options: Any) -> Any:
        fields: ChunkFields = arguments[0]
        count = self.checking if fields.query_lens.max() > 1 else self.decoding
        count.num_runs += 1
        count.num_adapted += options.get("adapted", False)
        return super().run(*arguments, **options)


def emulate_prompts(
    runner: TorchRunner, monkeypatch: pytest.MonkeyPatch, sizes: Sequence[int]
) -> Counted:
    """Graphs of prompts for an engine on the CPU."""
    _capture(runner, monkeypatch, EmulatedPrompts(), sizes=sizes)
    forward_pass = runner._forward_pass
    counted = Counted(forward_pass.prompt_graphs)
    forward_pass.prompt_graphs = counted  # type: ignore[assignment]
    return counted


def _capture(
    runner: TorchRunner,
    monkeypatch: pytest.MonkeyPatch,
    attention: TorchAttention,
    num_drafts: int = 0,
    sizes: Sequence[int] = (),
) -> None:
    """As ``load_runner`` has it done on a GPU. sizes: of prompts."""
    monkeypatch.setattr(sized, "record", record)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(cuda.native, "step_inputs", step_inputs, raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(AdapterSlots, "is_capturable", True)
        patch.setattr(forward, "prompt_sizes", lambda max_num_tokens: sizes)
        patch.setattr(runner._forward_pass, "_attention", attention)
        runner._forward_pass.capture(num_drafts, 1, lambda done: None)


def emulate(
    runner: TorchRunner, monkeypatch: pytest.MonkeyPatch, num_drafts: int
) -> tuple[Count, Count, Counted | None]:
    """Graphs for an engine on the CPU, as ``load_runner`` makes them on a GPU. Counts runs of plain
    decoding, of checking drafts, and of drafting where a network does that token by token."""
    attention = EmulatedAttention(runner._blocks.cache.groups.windows)
    _capture(runner, monkeypatch, attention, num_drafts)
    forward_pass = runner._forward_pass
    assert forward_pass.graphs is not None
    forward_pass.graphs = counted = CountedSteps(forward_pass.graphs)  # type: ignore[assignment]
    drafting = runner._drafting
    if not isinstance(drafting, ChainDrafting):
        return counted.decoding, counted.checking, None
    graphs = DraftGraphs(
        drafting._network,
        drafting._features,
        drafting._cache.layers,
        runner._table,
        runner._sampler,
        attention,
        num_drafts=num_drafts,
    )
    graphs.capture()
    drafting._graphs = by_graph = Counted(graphs)  # type: ignore[assignment]
    return counted.decoding, counted.checking, by_graph
