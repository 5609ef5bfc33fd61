"""Ranks as threads of the test's process: what they compute is what processes compute, and none has
to start."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import runner as runners
from engine.config import EngineConfig
from engine.llm import LLM
from engine.lora.adapter import Adapter
from engine.parallel.group import ALONE, Group
from engine.parallel.stage import Stage, rank_of, stage_of
from engine.runner.ranks import records
from engine.runner.runner import Sampled, TorchRunner
from engine.runner.startup import load
from engine.runner.startup.ranks import check_ranks
from engine.scheduler.plan import StepPlan, StepResult, TokenMask

_PATIENCE_S = 60.0
Queues = dict[tuple[int, int, str], "queue.SimpleQueue[Any]"]


class ThreadGroup(Group):
    """The collectives of threads that share ``slots`` and ``barrier``."""

    def __init__(self, rank: int, slots: list[Any], barrier: threading.Barrier) -> None:
        super().__init__(rank, len(slots))
        self._slots, self._barrier = slots, barrier

    @contextmanager
    def _all(self, value: Any) -> Iterator[list[Any]]:
        """What all ranks pass."""
        self._slots[self.rank] = value
        self._barrier.wait(_PATIENCE_S)
        yield list(self._slots)
        self._barrier.wait(_PATIENCE_S)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        with self._all(x) as summands:
            total = torch.stack(summands).sum(0)
        return total

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        with self._all(x) as parts:
            gathered = torch.stack(parts)
        return gathered

    def least(self, value: float) -> float:
        with self._all(value) as values:
            least = min(values)
        return float(least)


class ThreadStage(Stage):
    """What stages pass each other, through ``queues``: by sender, receiver, and what it is."""

    def __init__(self, everyone: Group, group: Group, count: int, queues: Queues) -> None:
        size = group.size
        super().__init__(stage_of(everyone.rank, size, count), count, group, everyone)
        self._own, self._queues = everyone.rank, queues
        self._rank_of = partial(rank_of, group_rank=group.rank, group_size=size, count=count)

    def send(self, tensors: Sequence[torch.Tensor]) -> None:
        to = self._rank_of(self.index + 1)
        self._queues[self._own, to, "hidden"].put([x.clone() for x in tensors])

    def receive(self, tensors: Sequence[torch.Tensor]) -> None:
        sent = self._queues[self._rank_of(self.index - 1), self._own, "hidden"].get(
            timeout=_PATIENCE_S
        )
        for x, found in zip(tensors, sent, strict=True):
            x.copy_(found)

    def send_tokens(self, token_ids: torch.Tensor) -> None:
        self._queues[self._own, self._rank_of(0), "tokens"].put(token_ids.clone())

    def receive_tokens(self, num_tokens: int) -> Callable[[], torch.Tensor]:
        last = self._rank_of(self.count - 1)

        def arrived() -> torch.Tensor:
            found: torch.Tensor = self._queues[last, self._own, "tokens"].get(timeout=_PATIENCE_S)
            assert len(found) == num_tokens
            return found

        return arrived


def stages_of(config: EngineConfig) -> list[Stage]:
    """Those of each rank."""
    size, count = config.tensor_parallel_size, config.pipeline_parallel_size
    queues: Queues = defaultdict(queue.SimpleQueue)
    everyone = groups(size * count)
    of_stage = [groups(size) if size > 1 else [ALONE] for _ in range(count)]
    return [
        ThreadStage(
            everyone[rank], of_stage[stage_of(rank, size, count)][rank % size], count, queues
        )
        for rank in range(size * count)
    ]


def groups(size: int) -> list[Group]:
    slots, barrier = [None] * size, threading.Barrier(size)
    return [ThreadGroup(rank, slots, barrier) for rank in range(size)]


class ThreadedRunner:
    """Each call is one of all ranks, by the records that processes would get."""

    def __init__(self, config: EngineConfig) -> None:
        stages = stages_of(config)
        self._threads = [ThreadPoolExecutor(1) for _ in stages]
        self.ranks: list[TorchRunner] = self._each(
            lambda rank: load._load(config, stages[rank], lambda _: None)
        )

    def _each(self, call: Callable[[int], Any]) -> list[Any]:
        waiting = [thread.submit(call, rank) for rank, thread in enumerate(self._threads)]
        return [one.result(_PATIENCE_S) for one in waiting]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ranks[0], name)

    @property
    def adapter_memory(self) -> Any:
        return None if self.ranks[0].adapters is None else _Adapters(self)

    def forward(self, plan: StepPlan) -> None:
        sent = records.encode(records.Forward(plan))

        def run(rank: int) -> None:
            record = records.decode(sent)
            assert isinstance(record, records.Forward)
            assert record.plan == plan
            self.ranks[rank].forward(record.plan if rank else plan)

        self._each(run)

    def sample(self, mask: TokenMask | None) -> _Launched:
        sent = records.encode(records.Sample.of(mask))

        def run(rank: int) -> Sampled:
            record = records.decode(sent)
            assert isinstance(record, records.Sample)
            return self.ranks[rank].sample(record.mask if rank else mask)

        return _Launched(self._each, self._each(run), self.ranks[0].stage.group.size)

    def draft(self, asked: Any, num_tokens: int, *, wait: bool) -> list[list[int]]:
        wait |= self.ranks[0].stage.count > 1

        def draft(rank: int) -> list[list[int]] | None:
            runner = self.ranks[rank]
            return runner.draft(asked, num_tokens, wait=wait) if runner.stage.is_last else None

        found: list[list[int]]
        found, *others = [drafts for drafts in self._each(draft) if drafts is not None]
        assert all(other == found for other in others)
        return found


class _Adapters:
    def __init__(self, runner: ThreadedRunner) -> None:
        self._runner = runner
        self._slots = [one.adapters for one in runner.ranks if one.adapters is not None]
        self.read = self._slots[0].read

    @property
    def num_swaps(self) -> int:
        return self._slots[0].num_swaps

    def keep(self, name: str, adapter: Adapter) -> None:
        record = records.decode(records.encode(records.KeepAdapter.of(name, adapter)))
        assert isinstance(record, records.KeepAdapter)
        for rank, slots in enumerate(self._slots):
            slots.keep(name, record.adapter if rank else adapter)

    def drop(self, name: str) -> None:
        for slots in self._slots:
            slots.drop(name)


class _Launched:
    def __init__(
        self, each: Callable[..., list[Any]], of_ranks: list[Sampled], group_size: int
    ) -> None:
        self._each, self._of_ranks, self._group_size = each, of_ranks, group_size

    def collect(self) -> StepResult:
        results = self._each(lambda rank: self._of_ranks[rank].collect())
        others = results[: self._group_size]
        assert all(other.token_ids == results[0].token_ids for other in others)
        first: StepResult = results[0]
        return first


def load_threads(config: EngineConfig, **_: object) -> Any:
    """In place of ``load_runner``."""
    if config.num_ranks == 1:
        return load.load_runner(config)
    check_ranks(config)
    return ThreadedRunner(config)


def make(model: Path | str, size: int, **options: Any) -> LLM:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runners, "load_runner", load_threads)
        return LLM(
            model,
            **{
                "device": "cpu",
                "block_size": 4,
                "num_gpu_blocks_override": 120,
                "num_threads": 1,
                "tensor_parallel_size": size,
                **options,
            },
        )
