"""An engine core over a toy runner, and what its requests must come to."""

from __future__ import annotations

import random
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from engine.adapters import Adapters
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import AdapterLoadError
from engine.messages import AdapterRef, GenerateRequest, Grant, Progress, RequestOutput
from engine.sampling_params import SamplingParams
from engine.spec.base import TextProposer
from engine.spec.config import SpeculativeConfig
from engine.spec.costs import StepCosts
from tests.engine.scheduler.toy_runner import ToyRunner, alone, seen, toy_logprobs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    import pytest

    from engine.request import Request
    from grammar.compiler import GrammarCompiler

EOS = 3


def waits_of(waiting: object, name: str, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each call of a method from now on may wait."""
    waits: list[float] = []
    method = getattr(waiting, name)

    def watched(*, wait_s: float) -> Any:
        waits.append(wait_s)
        return method(wait_s=wait_s)

    monkeypatch.setattr(waiting, name, watched)
    return waits


def config(**options: Any) -> EngineConfig:
    return EngineConfig(model="toy", **options)


FIVE_DRAFTS = SpeculativeConfig(
    method="ngram", num_speculative_tokens=5, prompt_lookup_min=1, prompt_lookup_max=3
)


class Seer(TextProposer):
    """Drafts what will come; each token is replaced by a random one if it is out of luck."""

    def __init__(self, harness: Harness, hits: float) -> None:
        self._harness = harness
        self._hits = hits
        self._rng = random.Random(0)
        self.alive: set[str] = set()

    def continue_text(self, request: Request, max_tokens: int) -> list[int]:
        assert max_tokens > 0
        self.alive.add(request.request_id)
        vocab_size = self._harness.runner.vocab_size
        future = self._harness.expected(request.request_id)[request.num_generated_tokens :]
        future += [EOS] * max_tokens  # And on behind the end.
        return [
            token_id if self._rng.random() < self._hits else self._rng.randrange(vocab_size)
            for token_id in future[: self._rng.randint(0, max_tokens)]
        ]

    def drop(self, request: Request) -> None:
        self.alive.discard(request.request_id)


class Inline(Executor):
    """Everything is done when it is asked for: runs must be reproducible."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class ToyAdapter(NamedTuple):
    rank: int
    digest: str
    base_model: str | None


class ToyMemory:
    """Every adapter loads whose path does not begin with "bad"."""

    num_swaps = 0

    def __init__(self) -> None:
        self.kept: set[str] = set()

    def read(self, folder: Path) -> ToyAdapter:
        if folder.name.startswith("bad"):
            raise AdapterLoadError(f"{folder} does not fit")
        return ToyAdapter(8, folder.name, None)

    def keep(self, name: str, adapter: ToyAdapter) -> None:
        self.kept.add(name)

    def drop(self, name: str) -> None:
        self.kept.remove(name)


def _region(message: GenerateRequest) -> str:
    """Whose computed tokens it may read: a salt's, with the base or an adapter."""
    return message.cache_salt + ("" if message.adapter is None else f"/{message.adapter.name}")


class Harness:
    """Submits requests, steps, checks integrity after each step, and keeps what came out."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        vocab_size: int = 50,
        max_model_len: int = 200,
        grammar: GrammarCompiler | None = None,
        clock: Callable[[], float] | None = None,
        draft_hits: float | None = None,
        step_costs: StepCosts | None = None,
        num_swap_blocks: int = 0,
        swap_s_per_block: float = 0.0,
        num_lookahead_tokens: int = 0,
        windows: Sequence[int | None] = (None,),
        window_step: int = 1,
        num_snapshots: int | None = None,
        num_picture_blocks: int = 0,
        **options: Any,
    ) -> None:
        options.setdefault("block_size", 4)
        # Most tests of preemption need what the forecast is there to avoid.
        options.setdefault("forecast_admission", False)
        if draft_hits is not None:
            options.setdefault("speculative_config", FIVE_DRAFTS)
        self.config = config(**options)
        self.runner = ToyRunner(
            num_blocks,
            self.config.block_size,
            vocab_size=vocab_size,
            max_num_seqs=self.config.num_seqs,
            max_num_batched_tokens=self.config.step_tokens,
            max_loras=self.config.max_loras,
            eos_token_ids=frozenset({EOS}),
            num_swap_blocks=num_swap_blocks,
            swap_s_per_block=swap_s_per_block,
            windows=windows,
            window_step=window_step,
            num_stages=self.config.pipeline_parallel_size,
            num_snapshots=num_snapshots,
            num_picture_blocks=num_picture_blocks,
        )
        self.runner.step_costs = step_costs
        self.runner.num_lookahead_tokens = num_lookahead_tokens
        self.adapters = ToyMemory()
        self.runner.adapters = self.adapters.kept
        extra: dict[str, Any] = {} if clock is None else {"clock": clock}
        self.core = EngineCore(
            self.config,
            self.runner,
            max_model_len=max_model_len,
            eos_token_ids={EOS},
            grammar=grammar,
            adapters=Adapters(
                self.adapters, max_cpu_loras=self.config.max_cpu_loras, reader=Inline()
            ),
            proposer=None if draft_hits is None else Seer(self, draft_hits),
            **extra,
        )
        self.max_total = min(max_model_len, self.scheduler.cache.max_num_tokens + 1)
        self.messages: dict[str, GenerateRequest] = {}
        self.tokens: dict[str, list[int]] = {}
        self.granted: dict[str, Grant] = {}
        self.reported_prompts: set[str] = set()
        self.finished: dict[str, RequestOutput] = {}

    @property
    def scheduler(self) -> Any:
        return self.core.scheduler

    def add(
        self,
        request_id: str,
        prompt: Sequence[int] | int,
        *,
        salt: str = "",
        adapter: str = "",
        **options: Any,
    ) -> None:
        """``prompt`` as a number stands for that many tokens nobody else has."""
        if isinstance(prompt, int):
            rng = random.Random(request_id)
            prompt = [rng.randrange(4, self.runner.vocab_size) for _ in range(prompt)]
        names = ["weight", "priority", "fair_key", "num_public_tokens", "group"]
        names += ["max_cached_blocks", "num_granted_tokens", "images"]
        fields = {name: options.pop(name) for name in names if name in options}
        options.setdefault("temperature", 0.0)
        message = GenerateRequest(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            params=SamplingParams(**options),
            cache_salt=salt,
            adapter=AdapterRef(name=adapter, path=f"/{adapter}") if adapter else None,
            **fields,
        )
        self.runner.regions[request_id] = (_region(message), self._num_shared(message))
        self.runner.images[request_id] = message.images
        self.messages[request_id] = message
        self.tokens[request_id] = []
        if message.num_granted_tokens is not None and message.num_granted_tokens >= 0:
            self.granted[request_id] = Grant(request_id, message.num_granted_tokens)
        self.core.add_request(message)

    def grant(self, request_id: str, num_tokens: int, *, is_last: bool = False) -> None:
        self.granted[request_id] = Grant(request_id, num_tokens, is_last)
        self.core.grant([self.granted[request_id]])
        self.core.check_integrity()

    def move(self, request_id: str) -> None:
        """Take an unfinished request away and bring it back, as it comes from another engine."""
        self.core.abort([request_id])
        self.step()
        del self.finished[request_id]
        grant = self.granted.get(request_id)
        self.core.add_request(
            msgspec.structs.replace(
                self.messages[request_id],
                num_granted_tokens=None if grant is None else grant.num_tokens,
                progress=Progress(token_ids=list(self.tokens[request_id])),
            )
        )
        if grant is not None:
            self.core.grant([grant])
        self.core.check_integrity()

    def _num_shared(self, message: GenerateRequest) -> int:
        if message.adapter is not None:
            return 0
        block_size = self.config.block_size
        return message.num_public_tokens // block_size * block_size

    def step(self, count: int = 1) -> list[RequestOutput]:
        outputs = []
        for _ in range(count):
            outputs = self.core.step()
            for output in outputs:
                assert output.request_id not in self.finished, "an output after the last one"
                self._check_logprobs(output)
                self.tokens[output.request_id] += output.new_token_ids
                grant = self.granted.get(output.request_id)
                if grant is not None:
                    assert len(self.tokens[output.request_id]) <= grant.num_tokens
                if output.finish_reason is not None:
                    self.finished[output.request_id] = output
            self.core.check_integrity()
        return outputs

    def _check_logprobs(self, output: RequestOutput) -> None:
        """All that was asked for, each at its place, and nothing else."""
        message = self.messages[output.request_id]
        prompt, params = message.prompt_token_ids, message.params
        start = len(prompt) + len(self.tokens[output.request_id])
        found = [toy_logprobs(t, start + i) for i, t in enumerate(output.new_token_ids)]
        if output.finish_reason != "error":
            assert output.logprobs == (None if params.logprobs is None else found)
        if output.prompt_logprobs is not None:
            assert output.request_id not in self.reported_prompts, "reported twice"
            self.reported_prompts.add(output.request_id)
            expected = [toy_logprobs(t, i) for i, t in enumerate(prompt) if i > 0]
            assert output.prompt_logprobs == expected
        if output.new_token_ids:
            asked = params.prompt_logprobs is not None
            assert (output.request_id in self.reported_prompts) == asked

    def run(self, max_steps: int = 5_000) -> None:
        """Until nothing is left to do; then nothing may be held."""
        for _ in range(max_steps):
            if not self.core.has_unfinished:
                break
            self.step()
        assert not self.core.has_unfinished, f"still busy after {max_steps} steps"
        assert self.finished.keys() == self.messages.keys(), "a request was never answered"

    def expected(self, request_id: str) -> list[int]:
        message = self.messages[request_id]
        params, prompt = message.params, message.prompt_token_ids
        stop_ids = frozenset(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
        most = self.max_total - len(prompt) if params.max_tokens is None else params.max_tokens
        grant = self.granted.get(request_id)
        if grant is not None and grant.is_last:
            most = min(most, grant.num_tokens)
        if most == 0:
            return []
        return alone(
            seen(prompt, message.images),
            _region(message),
            num_public=self._num_shared(message),
            vocab_size=self.runner.vocab_size,
            max_total=len(prompt) + most,
            stop_ids=frozenset(stop_ids),
            min_tokens=params.min_tokens,
            windows=[kind.window for kind in self.runner.kinds],
        )

    def check_outputs(self, *, errors: AbstractSet[str] = frozenset()) -> None:
        """Every request that came to its own end generated what it does alone; one that was
        aborted, the beginning of that; and exactly ``errors`` ended with an error."""
        failed = {r for r, output in self.finished.items() if output.finish_reason == "error"}
        assert failed == errors, [self.finished[r].error for r in failed]
        for request_id, output in self.finished.items():
            if output.finish_reason in ("stop", "length"):
                assert self.tokens[request_id] == self.expected(request_id), request_id
            elif output.finish_reason == "abort":
                tokens = self.tokens[request_id]
                assert tokens == self.expected(request_id)[: len(tokens)], request_id
