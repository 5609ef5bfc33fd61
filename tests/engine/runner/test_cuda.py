"""The same plans on a GPU give the same tokens, with its kernels, with graphs and without."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import engine.demo
from engine.config import EngineConfig
from engine.llm import LLM, TokensPrompt
from engine.runner import load_runner
from engine.runner.graphs import fused
from engine.runner.graphs.fused import longest_faster
from engine.runner.graphs.shared_inputs import SharedInputs
from engine.runner.graphs.sized import SizedGraphs
from engine.runner.graphs.steps import Kind, StepGraphs
from engine.runner.inputs import ChunkFields
from engine.sampling_params import SamplingParams
from kernels import cuda
from tests.engine.runner.conftest import BLOCK_SIZE, MAX_ROWS
from tests.engine.runner.harness import Generation, Harness
from tests.engine.runner.test_runner import MIXED, even_tokens, generations, prompt
from tests.engine.runner.tiny_llama import save_tiny_llama

pytestmark = pytest.mark.gpu
Greedy = Callable[[list[int], int], list[int]]


@pytest.fixture(scope="module")
def cuda_config(tiny_config: EngineConfig) -> EngineConfig:
    return msgspec.structs.replace(tiny_config, device="cuda", dtype="float32")


def run(config: EngineConfig, done: list[Generation], **how: object) -> list[list[int]]:
    h = Harness(load_runner(config), block_size=BLOCK_SIZE, max_rows=MAX_ROWS)
    h.run(done, **how)  # type: ignore[arg-type]
    return [generation.output for generation in done]


@pytest.mark.parametrize("attention_backend", ["triton", "torch"])
@pytest.mark.parametrize("enforce_eager", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("chunk_size", [5, 1000])
def test_greedy_equals_transformers_on_the_cpu(
    cuda_config: EngineConfig,
    greedy: Greedy,
    overlap: bool,
    chunk_size: int,
    enforce_eager: bool,
    attention_backend: str,
) -> None:
    done = generations(*MIXED)
    config = msgspec.structs.replace(
        cuda_config, enforce_eager=enforce_eager, attention_backend=attention_backend
    )
    outputs = run(config, done, overlap=overlap, chunk_size=chunk_size, max_running=6)
    assert outputs == [greedy(g.prompt, g.max_tokens) for g in done]


def test_preemption_and_prefix_hits_change_nothing(
    cuda_config: EngineConfig, greedy: Greedy
) -> None:
    base = prompt(99, 48)
    first = Generation("first", base, 40)
    hit = Generation("hit", base[:42] + prompt(1, 9), 20, shares=(first, 42))
    rng = random.Random(0)
    done = [first, hit, *generations((9, 30), (30, 30))]
    outputs = run(
        cuda_config,
        done,
        preempt=lambda _step, running: [
            g for g in running if g not in (first, hit) and g.row is not None and rng.random() < 0.1
        ],
    )
    assert outputs == [greedy(g.prompt, g.max_tokens) for g in done]


def test_sampling_and_masks_work_there_too(
    cuda_config: EngineConfig, tiny_config: EngineConfig
) -> None:
    def mixed() -> list[Generation]:
        params = [
            SamplingParams(temperature=0.9, top_k=20, top_p=0.9, min_p=0.01, seed=3),
            SamplingParams(temperature=0.0, min_tokens=4, stop_token_ids=(7, 8)),
            SamplingParams(temperature=1.2, seed=9),
        ]
        return [
            Generation(str(i), prompt(i, 20), 30, p, mask=even_tokens if i == 2 else None)
            for i, p in enumerate(params)
        ]

    assert run(cuda_config, mixed(), overlap=False) == run(tiny_config, mixed())


STEERED: list[dict[str, Any]] = [
    {"temperature": 0.0, "frequency_penalty": 1.0, "repetition_penalty": 1.2},
    {"presence_penalty": 2.0, "seed": 1, "logprobs": 2},
    {"bad_words_token_ids": ((1,), (2, 3)), "logit_bias": {2: 5.0, 3: 5.0}, "seed": 2},
    {"allowed_token_ids": tuple(range(40)), "seed": 3, "prompt_logprobs": 1},
]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("chunk_size", [7, 1000])
def test_steered_requests_generate_what_they_do_on_the_cpu(
    cuda_config: EngineConfig, tiny_config: EngineConfig, overlap: bool, chunk_size: int
) -> None:
    def mixed() -> list[Generation]:
        params = [SamplingParams(max_tokens=30, **how) for how in STEERED]
        return [Generation(str(i), prompt(i, 20), 30, p) for i, p in enumerate(params)]

    ours = run(cuda_config, mixed(), overlap=overlap, chunk_size=chunk_size)
    assert ours == run(tiny_config, mixed())


@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 40}])
def test_logprobs_are_those_of_the_cpu(tiny_dir: Path, options: dict[str, Any]) -> None:
    params = SamplingParams(seed=3, logprobs=3, prompt_logprobs=2, max_tokens=20, ignore_eos=True)
    prompts: list[TokensPrompt] = [
        {"prompt_token_ids": prompt(i, n)} for i, n in enumerate((1, 9, 90))
    ]
    common: dict[str, Any] = {"dtype": "float32", "skip_tokenizer_init": True, "max_num_seqs": 8}
    on_gpu, on_cpu = (
        LLM(tiny_dir, device=device, num_gpu_blocks_override=100, **common, **options).generate(
            prompts, params
        )
        for device in ("cuda", "cpu")
    )
    for ours, theirs in zip(on_gpu, on_cpu, strict=True):
        assert ours.outputs[0].token_ids == theirs.outputs[0].token_ids
        entries = [*(ours.outputs[0].logprobs or ()), *(ours.prompt_logprobs or ())[1:]]
        others = [*(theirs.outputs[0].logprobs or ()), *(theirs.prompt_logprobs or ())[1:]]
        assert len(entries) == 20 + len(ours.prompt_token_ids) - 1
        for entry, other in zip(entries, others, strict=True):
            assert entry is not None
            assert other is not None
            assert entry.keys() == other.keys()
            for token_id, found in entry.items():
                assert found.rank == other[token_id].rank
                assert found.logprob == pytest.approx(other[token_id].logprob, abs=1e-3)


def own_memory(device: object = None) -> tuple[int, int]:
    """As ``torch.cuda.mem_get_info``, had this process the device to itself."""
    _, total = _mem_get_info()
    return total - torch.cuda.memory_reserved(), total


_mem_get_info = torch.cuda.mem_get_info


def test_the_cache_takes_the_memory_that_is_left(
    cuda_config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may use the device meanwhile: the share is small, and only our own memory counts."""
    torch.cuda.empty_cache()
    before, total = torch.cuda.memory_reserved(), own_memory()[1]
    share = before / total + 0.05
    config = msgspec.structs.replace(
        cuda_config, num_gpu_blocks_override=None, gpu_memory_utilization=share
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", own_memory)
    runner = load_runner(config)
    torch.cuda.empty_cache()
    assert 0.04 * total < torch.cuda.memory_reserved() - before <= 0.05 * total
    done = Generation("a", prompt(0, 30), 5)
    Harness(runner, block_size=BLOCK_SIZE, max_rows=2).run([done])
    assert len(done.output) == 5


DEMO_MODEL = Path(engine.demo.__file__).parent / "model"
LENGTHS = (1, 9, 16, 40, 130, 300)


def demo_outputs(**options: object) -> list[list[int]]:
    config = msgspec.convert(
        {"model": str(DEMO_MODEL), "max_num_seqs": 8, "num_gpu_blocks_override": 400, **options},
        EngineConfig,
    )
    runner = load_runner(config)
    rng = random.Random(5)
    done = [
        Generation(str(i), [rng.randrange(runner.vocab_size) for _ in range(n)], 100)
        for i, n in enumerate(LENGTHS)
    ]
    Harness(runner, block_size=16, max_rows=8).run(done, chunk_size=64, overlap=True)
    return [generation.output for generation in done]


def test_demo_model_in_float32_equals_the_cpu() -> None:
    assert demo_outputs(device="cuda", dtype="float32") == demo_outputs(device="cpu")


def wide_config(folder: Path, **options: object) -> EngineConfig:
    """A random model that the decode kernel serves."""
    return msgspec.convert(
        {
            "model": str(folder),
            "device": "cuda",
            "dtype": "bfloat16",
            "max_num_seqs": 40,
            "max_num_batched_tokens": 512,
            "num_gpu_blocks_override": 600,
            **options,
        },
        EngineConfig,
    )


@pytest.fixture(scope="module")
def wide_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wide-llama")
    save_tiny_llama(
        folder,
        hidden_size=256,
        intermediate_size=512,
        head_dim=64,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=600,
        vocab_size=1000,
        initializer_range=0.08,
    )
    return folder


def wide_outputs(folder: Path, params: SamplingParams, **options: object) -> list[list[int]]:
    config = wide_config(folder, **options)
    runner = load_runner(config)
    rng = random.Random(1)
    done = [
        Generation(str(i), [rng.randrange(1000) for _ in range(rng.randint(1, 200))], 40, params)
        for i in range(20)
    ]
    Harness(runner, block_size=16, max_rows=40).run(
        done, overlap=True, token_budget=512, max_running=13
    )
    return [generation.output for generation in done]


GREEDY_PARAMS = SamplingParams(temperature=0.0)


def first_difference(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


@pytest.mark.parametrize("options", [{"enforce_eager": True}, {"attention_backend": "triton"}])
def test_bfloat16_runs_agree_but_for_near_ties(wide_dir: Path, options: dict[str, object]) -> None:
    ours = wide_outputs(wide_dir, GREEDY_PARAMS)
    other = wide_outputs(wide_dir, GREEDY_PARAMS, **options)
    common = [first_difference(a, b) for a, b in zip(ours, other, strict=True)]
    # A wrong token table, block table or mask would part them within a token or two.
    assert sum(common) > 0.5 * 40 * 20


def few_outputs(folder: Path, max_running: int, **options: object) -> list[list[int]]:
    """Of requests of which so many run at once, over all lengths that the model takes; some give
    way to others on their way."""
    runner = load_runner(wide_config(folder, **options))
    rng = random.Random(7)
    done = [
        Generation(str(n), [rng.randrange(1000) for _ in range(n)], 60, GREEDY_PARAMS)
        for n in (1, 30, 63, 127, 250, 400, 530)
    ]
    Harness(runner, block_size=16, max_rows=40).run(
        done,
        max_running=max_running,
        preempt=lambda step, running: running[:1] if step % 50 == 49 else [],
    )
    return [generation.output for generation in done]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("max_running", "limit"), [(1, 150), (3, 150), (7, 210)])
def test_one_kernel_for_few_sequences_changes_only_near_ties(
    wide_dir: Path, dtype: str, max_running: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[bool] = []
    choose = StepGraphs._choose

    def spy(self: StepGraphs, fields: ChunkFields, kind: Kind) -> SizedGraphs:
        graphs = choose(self, fields, kind)
        served.append(graphs in self._fused.values())
        return graphs

    def outputs(max_len: int) -> list[list[int]]:
        monkeypatch.setattr(fused, "longest_faster", lambda *steps, **limits: max_len)
        served.clear()
        return few_outputs(wide_dir, max_running, dtype=dtype)

    monkeypatch.setattr(StepGraphs, "_choose", spy)
    layers = outputs(0)
    assert not any(served)
    ours = outputs(600)
    if not any(served):
        pytest.skip("not for this GPU")
    assert all(served)
    assert ours == outputs(600), "the same batches twice are equal"
    # A wrong table would part them within a token or two; near-ties are many in bfloat16.
    least = 0.25 if dtype == "bfloat16" else 0.5
    common = [first_difference(a, b) for a, b in zip(ours, layers, strict=True)]
    assert sum(common) > least * 60 * len(ours)
    # The same sequences, on both sides of the limit.
    both = outputs(limit)
    assert {True, False} == set(served)
    common = [first_difference(a, b) for a, b in zip(both, layers, strict=True)]
    assert sum(common) > least * 60 * len(ours)


@pytest.mark.parametrize("max_num_seqs", [1, 2, 4])
def test_drafts_checked_by_one_kernel_change_only_near_ties(
    wide_dir: Path, max_num_seqs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[bool] = []
    choose = StepGraphs._choose

    def spy(self: StepGraphs, fields: ChunkFields, kind: Kind) -> SizedGraphs:
        graphs = choose(self, fields, kind)
        if kind.num_queries > 1:
            served.append(graphs in self._fused.values())
        return graphs

    def outputs(max_len: int) -> list[list[int]]:
        """Of a model that falls into loops, so that prompt lookup finds drafts."""
        monkeypatch.setattr(fused, "longest_faster", lambda *steps, **limits: max_len)
        served.clear()
        llm = LLM(
            wide_dir,
            device="cuda",
            dtype="bfloat16",
            max_num_seqs=max_num_seqs,
            num_gpu_blocks_override=600,
            skip_tokenizer_init=True,
            speculative_config={
                "method": "ngram",
                "prompt_lookup_min": 1,
                "prompt_lookup_max": 3,
                "num_speculative_tokens": 8 // max_num_seqs - 1,
                "adaptive": False,
            },
        )
        rng = random.Random(5)
        prompts = [
            TokensPrompt(prompt_token_ids=[rng.randrange(1000) for _ in range(length)] * 2)
            for length in (30, 9, 16, 40, 50)
        ]
        params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
        return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params)]

    monkeypatch.setattr(StepGraphs, "_choose", spy)
    layers = outputs(0)
    assert served
    assert not any(served)
    ours = outputs(600)
    if not any(served):
        pytest.skip("not for this GPU")
    assert all(served)
    assert ours == outputs(600), "the same batches twice are equal"
    common = [first_difference(a, b) for a, b in zip(ours, layers, strict=True)]
    assert sum(common) > 0.25 * 60 * len(ours)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("num_drafts", [7, 15])
def test_as_many_drafts_as_a_copy_is_long(
    dtype: str, num_drafts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also more than attention decodes at once. What the demo model copies it is sure of."""

    def outputs(**speculative: object) -> tuple[list[list[int]], int]:
        llm = LLM(
            engine.demo.MODEL_DIR,
            device="cuda",
            dtype=dtype,
            max_num_seqs=4,
            kv_cache_memory_bytes=64 << 20,
            speculative_config=speculative or None,
        )
        texts = "Two small boats left the old harbour.", "My aunt keeps seven grey geese here."
        prompts = [f"Repeat this: {text}" for text in (*texts, " ".join(texts), texts[1] * 2)]
        messages = [[{"role": "user", "content": prompt}] for prompt in prompts]
        params = SamplingParams(temperature=0.0, max_tokens=60)
        found = [output.outputs[0].token_ids for output in llm.chat(messages, params)]
        return found, llm.stats().num_steps

    plain, num_steps = outputs()
    served: list[bool] = []
    fits = StepGraphs.fits

    def spy(self: StepGraphs, fields: ChunkFields, *, adapted: bool = False) -> bool:
        found = fits(self, fields, adapted=adapted)
        served.append(found and fields.query_lens.max() > 1)
        return found

    monkeypatch.setattr(StepGraphs, "fits", spy)
    drafting = {"method": "ngram", "num_speculative_tokens": num_drafts, "adaptive": False}
    copied, num_checks = outputs(**drafting, prompt_lookup_min=1, prompt_lookup_max=4)
    assert copied == plain
    assert num_checks < 0.6 * num_steps
    assert sum(served) > 1


def test_one_kernel_after_a_stream_that_nobody_reads_on(
    wide_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two samples each of more requests than there are blocks for."""

    def outputs(max_len: int) -> list[list[int]]:
        monkeypatch.setattr(fused, "longest_faster", lambda *steps, **limits: max_len)
        llm = LLM(
            wide_dir,
            device="cuda",
            dtype="bfloat16",
            max_num_seqs=16,
            num_gpu_blocks_override=60,
            enable_prefix_caching=False,
            skip_tokenizer_init=True,
        )
        rng = random.Random(5)
        prompts = [
            TokensPrompt(prompt_token_ids=[rng.randrange(1000) for _ in range(length)])
            for length in (60, 9, 33, 80, 100, 70, 64)
        ]
        endless = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
        stream = llm.stream(prompts[:2], endless)
        for _ in range(20):
            next(stream)
        stream.close()
        params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, n=2)
        done = llm.generate(prompts, params)
        return [list(sample.token_ids) for output in done for sample in output.outputs]

    ours, layers = outputs(600), outputs(0)
    common = [first_difference(a, b) for a, b in zip(ours, layers, strict=True)]
    assert sum(common) > 0.25 * 60 * len(ours)


def test_whether_one_kernel_is_faster_is_measured(
    wide_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []

    def spy(*steps: Any, **limits: Any) -> int:
        found.append(longest_faster(*steps, **limits))
        return found[-1]

    monkeypatch.setattr(fused, "longest_faster", spy)
    decoding = load_runner(wide_config(wide_dir))._forward_pass.graphs
    assert decoding is not None
    assert bool(decoding._fused) == any(found)
    assert all(0 <= length <= 600 for length in found)
    num_measured = len(found)
    decoding = load_runner(wide_config(wide_dir, dtype="float32"))._forward_pass.graphs
    assert decoding is not None
    assert not decoding._fused
    assert len(found) == num_measured


def test_graphs_change_no_sampled_token_where_products_are_exact(wide_dir: Path) -> None:
    params = SamplingParams(temperature=0.9, top_k=30, top_p=0.9, seed=3)
    with_graphs = wide_outputs(wide_dir, params, dtype="float32")
    assert wide_outputs(wide_dir, params, dtype="float32", enforce_eager=True) == with_graphs


def shared_outputs(folder: Path, **options: object) -> list[list[int]]:
    """Twenty requests that start like a first one, which outlives them."""
    rng = random.Random(3)
    base = [rng.randrange(1000) for _ in range(300)]
    first = Generation("first", base, 200)
    rest = [
        Generation(
            str(i), base + [rng.randrange(1000) for _ in range(1 + 3 * i)], 40, shares=(first, 300)
        )
        for i in range(20)
    ]
    runner = load_runner(wide_config(folder, **options))
    Harness(runner, block_size=16, max_rows=40).run([first, *rest], overlap=True)
    return [generation.output for generation in (first, *rest)]


def test_reading_a_shared_prefix_once_changes_only_near_ties(
    wide_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not cuda.has_shared_prefix(torch.device("cuda"), 64, torch.bfloat16):
        pytest.skip("not for this GPU")
    apart = shared_outputs(wide_dir, enforce_eager=True)
    sizes: list[int] = []
    send = SharedInputs.send

    def spy(self: SharedInputs, size: int) -> None:
        sizes.append(size)
        send(self, size)

    monkeypatch.setattr(SharedInputs, "send", spy)
    monkeypatch.setattr("engine.runner.graphs.shared_inputs.MIN_SAVED_TOKENS", 1)
    together = shared_outputs(wide_dir)
    assert {32} <= set(sizes) <= {32, 16, 8, 40}
    common = [first_difference(a, b) for a, b in zip(apart, together, strict=True)]
    assert sum(common[1:]) > 0.5 * 40 * 20


def test_dummy_weights_need_no_checkpoint(wide_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((wide_dir / "config.json").read_text())
    done = Generation("a", prompt(0, 30), 5)
    runner = load_runner(wide_config(tmp_path, load_format="dummy"))
    Harness(runner, block_size=16, max_rows=2).run([done])
    assert len(done.output) == 5


@pytest.mark.parametrize("attention_backend", ["triton", "torch"])
@pytest.mark.parametrize("enforce_eager", [False, True])
def test_a_kv_cache_in_fp8_generates_what_it_does_on_a_cpu(
    cuda_config: EngineConfig,
    tiny_config: EngineConfig,
    enforce_eager: bool,
    attention_backend: str,
) -> None:
    """In float32, so that both round the same numbers; nearly all of them alike."""
    fp8 = {"kv_cache_dtype": "fp8", "enforce_eager": enforce_eager}
    config = msgspec.structs.replace(cuda_config, attention_backend=attention_backend, **fp8)
    outputs = run(config, generations(*MIXED), chunk_size=5, max_running=6)
    expected = run(msgspec.structs.replace(tiny_config, **fp8), generations(*MIXED))
    pairs = list(zip(outputs, expected, strict=True))
    same = sum(a == b for a, b in pairs)
    assert same >= 0.8 * len(pairs), f"{same} of {len(pairs)}"


def test_bfloat16_over_fp8_on_our_kernels_stays_close(tmp_path: Path) -> None:
    """Prompts' log-probabilities of the ``cuda`` backend over FP8 against those over bfloat16."""
    save_tiny_llama(tmp_path, head_dim=64, initializer_range=0.05)
    prompts = [TokensPrompt(prompt_token_ids=prompt(seed, 40 + 13 * seed)) for seed in range(6)]
    params = SamplingParams(temperature=0.0, max_tokens=24, prompt_logprobs=0, logprobs=0)
    scores = []
    for dtype in ("auto", "fp8"):
        llm = LLM(
            tmp_path,
            device="cuda",
            dtype="bfloat16",
            kv_cache_dtype=dtype,
            attention_backend="cuda",
            skip_tokenizer_init=True,
            num_gpu_blocks_override=200,
        )
        outputs = llm.generate(prompts, params)
        scores.append(
            [
                next(iter(at.values())).logprob
                for output in outputs
                for at in output.prompt_logprobs or []
                if at
            ]
        )
    drift = [abs(a - b) for a, b in zip(*scores, strict=True)]
    assert 0 < sum(drift) / len(drift) < 0.05
