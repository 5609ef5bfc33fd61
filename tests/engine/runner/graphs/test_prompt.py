from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from engine.attention.cuda import LEAST_CAPTURED_WINDOW
from engine.config import EngineConfig
from engine.llm import LLM, TokensPrompt
from engine.runner import TorchRunner, load_runner
from engine.runner.graphs.prompt import PromptGraphs, prompt_sizes
from engine.runner.graphs.sized import SizedGraphs
from engine.runner.inputs import ChunkFields
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import Chunk
from tests.engine.runner.conftest import BLOCK_SIZE, MAX_ROWS
from tests.engine.runner.emulated_graphs import Counted, emulate_prompts
from tests.engine.runner.harness import Generation, Harness
from tests.engine.runner.test_runner import even_tokens, prompt
from tests.engine.runner.tiny_llama import save_tiny_llama

SIZES = [4, 8, 32]


@given(st.integers(1, 10_000))
@example(16)
@example(384)
def test_sizes_ascend_to_what_a_step_may_have(max_num_tokens: int) -> None:
    sizes = prompt_sizes(max_num_tokens)
    assert sizes == sorted(set(sizes))
    assert all(size <= max_num_tokens for size in sizes)
    assert all(b - a <= LEAST_CAPTURED_WINDOW for a, b in pairwise([0, *sizes]))
    assert bool(sizes) == (max_num_tokens >= 16)
    assert (max_num_tokens in sizes) == (max_num_tokens in (16, 32, 64, 128, 192, 256, 384))


def chunk(n: int, *, samples: bool = True, drafts: tuple[int, ...] = ()) -> Chunk:
    return Chunk(0, "a", 5, n, samples, draft_token_ids=drafts)


@pytest.mark.parametrize(
    ("chunks", "fits"),
    [
        ([chunk(2)], True),
        ([chunk(32)], True),
        ([chunk(33)], False),
        ([chunk(1)], False),
        ([chunk(8, samples=False)], False),
        ([chunk(3, drafts=(1, 2))], False),
        ([chunk(8), chunk(1)], False),
    ],
)
def test_only_a_lone_prompt_that_ends_fits(chunks: list[Chunk], fits: bool) -> None:
    graphs = object.__new__(PromptGraphs)
    graphs.max_num_tokens = 32
    graphs._families = {False: cast(SizedGraphs, None)}
    assert graphs.fits(ChunkFields.read(chunks)) is fits
    assert not graphs.fits(ChunkFields.read(chunks), adapted=True)


class TestEmulated:
    """On a CPU; whatever attention leaves in the rows that fill a graph up is not a number."""

    @pytest.fixture
    def counted(self, runner: TorchRunner, monkeypatch: pytest.MonkeyPatch) -> Counted:
        return emulate_prompts(runner, monkeypatch, SIZES)

    def run(
        self, runner: TorchRunner, done: list[Generation], chunk_size: int = 1000
    ) -> list[list[int]]:
        harness = Harness(runner, block_size=BLOCK_SIZE, max_rows=MAX_ROWS)
        harness.run(done, max_running=1, chunk_size=chunk_size)
        return [generation.output for generation in done]

    @pytest.mark.parametrize("chunk_size", [1000, 21])
    def test_tokens_are_those_of_other_steps(
        self,
        runner: TorchRunner,
        counted: Counted,
        greedy: Callable[[list[int], int], list[int]],
        chunk_size: int,
    ) -> None:
        lengths = [2, 3, 4, 5, 8, 9, 31, 32, 33, 50]
        done = [Generation(str(n), prompt(n, n), 6) for n in lengths]
        outputs = self.run(runner, done, chunk_size=chunk_size)
        assert outputs == [greedy(g.prompt, g.max_tokens) for g in done]
        assert counted.num_runs == (len(lengths) if chunk_size == 21 else len(lengths) - 2)

    def test_behind_a_cached_prefix(
        self,
        runner: TorchRunner,
        counted: Counted,
        greedy: Callable[[list[int], int], list[int]],
    ) -> None:
        first = Generation("first", prompt(1, 48), 3)
        hit = Generation("hit", first.prompt[:44] + prompt(2, 9), 12, shares=(first, 44))
        harness = Harness(runner, block_size=BLOCK_SIZE, max_rows=MAX_ROWS)
        harness.run([first, hit], chunk_size=40)
        assert hit.output == greedy(hit.prompt, 12)
        assert counted.num_runs > 0

    def test_masks_and_parameters_hold_for_the_first_token(
        self, runner: TorchRunner, tiny_config: EngineConfig, counted: Counted
    ) -> None:
        def made() -> list[Generation]:
            warm = SamplingParams(temperature=1.2, seed=9, logprobs=2)
            return [
                Generation("mask", prompt(3, 20), 5, warm, mask=even_tokens),
                Generation("plain", prompt(4, 20), 5, SamplingParams(temperature=0.9, seed=1)),
            ]

        assert self.run(runner, made()) == self.run(load_runner(tiny_config), made())
        assert counted.num_runs == 2

    def test_who_wants_logprobs_of_the_prompt_takes_another_way(
        self, runner: TorchRunner, counted: Counted
    ) -> None:
        params = SamplingParams(temperature=0.0, prompt_logprobs=1)
        self.run(runner, [Generation("a", prompt(5, 20), 3, params)])
        assert counted.num_runs == 0


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    save_tiny_llama(
        folder,
        hidden_size=512,
        intermediate_size=1024,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.05,
    )
    return folder


@pytest.mark.gpu
class TestOnGpu:
    def load(self, folder: Path) -> LLM:
        return LLM(
            model=str(folder),
            dtype="bfloat16",
            skip_tokenizer_init=True,
            max_num_seqs=8,
            num_gpu_blocks_override=400,
            enable_prefix_caching=False,
        )

    def test_logits_are_those_of_other_steps(self, model_dir: Path) -> None:
        if torch.cuda.get_device_capability() != (9, 0):
            pytest.skip("prompts are captured on Hopper")
        llm = self.load(model_dir)
        runner = llm._core._runner  # type: ignore[attr-defined]
        graphs = runner._forward_pass.prompt_graphs
        assert graphs is not None
        counted = Counted(graphs)
        lengths = [2, 15, 16, 17, 100, 127, 128, 129, 256, 300, 384, 385, 700]
        prompts = [TokensPrompt(prompt_token_ids=prompt(n, n)) for n in lengths]
        params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=5)

        def first_tokens(used: Counted | None) -> list[dict[int, float]]:
            runner._forward_pass.prompt_graphs = used
            outputs = [llm.generate([p], params)[0].outputs[0] for p in prompts]
            assert all(output.logprobs is not None for output in outputs)
            return [
                {token: found.logprob for token, found in output.logprobs[0].items()}
                for output in outputs
                if output.logprobs is not None
            ]

        captured, eager = first_tokens(counted), first_tokens(None)
        again = first_tokens(counted)
        assert counted.num_runs == 2 * sum(n <= 384 for n in lengths)
        assert captured == again
        for n, ours, theirs in zip(lengths, captured, eager, strict=True):
            for token in ours.keys() & theirs.keys():
                assert ours[token] == pytest.approx(theirs[token], abs=0.1), n
            assert len(ours.keys() & theirs.keys()) >= 3, n
