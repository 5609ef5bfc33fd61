"""Layers with a window against transformers, while what they left behind is NaN."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import save_file

from engine.attention.base import FP8
from engine.cache.groups import kinds_of, peak_blocks
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import GenerateRequest
from engine.runner import load_runner
from engine.runner.drafts.drafting import ChainDrafting
from engine.runner.runner import TorchRunner
from engine.sampling_params import SamplingParams
from engine.spec.config import SpeculativeConfig
from kernels import cpu
from tests.engine.models.families import CASES, FALLBACK_CASES, PROMPT_LEN, Case, reference, write
from tests.engine.models.test_families import TOLERANCE, watch_logits
from tests.engine.runner.emulated_graphs import emulate
from tests.pairs import each_value

WINDOW, BLOCK_SIZE, FP8_NAN = 9, 4, 0x7F
GROUPS: dict[str, tuple[int | None, ...]] = {
    "mistral": (WINDOW,),
    "gemma2": (None, WINDOW),
    "gemma3": (None, WINDOW),
    "gemma3-five-to-one": (None, *[WINDOW] * 5),
    "qwen2-window": (None, WINDOW),
    "cohere2": (None, WINDOW, WINDOW, WINDOW),
}
"""The layer groups that each checkpoint comes to."""
DRAFTS = SpeculativeConfig(
    method="ngram",
    num_speculative_tokens=3,
    prompt_lookup_min=1,
    prompt_lookup_max=3,
    adaptive=False,
)
NETWORKS = ("draft_model", "eagle")


def cases() -> list[Case]:
    by_name = {case.name: case for case in (*CASES, *FALLBACK_CASES)}
    gemma3 = by_name["gemma3"]
    types = ["sliding_attention"] * 5 + ["full_attention"]
    by_name["gemma3-five-to-one"] = replace(
        gemma3,
        name="gemma3-five-to-one",
        fields={**gemma3.fields, "num_hidden_layers": 6, "layer_types": types},
    )
    return [by_name[name] for name in GROUPS]


class Subject:
    """A checkpoint as transformers loads it, and engines of it whose free blocks are NaN."""

    def __init__(
        self, case: Case, folder: Path, prompt_len: int = PROMPT_LEN, **changes: Any
    ) -> None:
        self.case = case
        self.folder = write(case, folder, **changes)
        self.theirs = reference(case, self.folder)
        rng = random.Random(1)
        vocab_size = self.theirs.config.get_text_config().vocab_size
        self.prompt = [rng.randrange(3, vocab_size) for _ in range(prompt_len)]

    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """[len(token_ids), vocab]"""
        with torch.inference_mode():
            logits: torch.Tensor = self.theirs(torch.tensor([token_ids]), use_cache=False).logits
        return logits[0]


def save_network(method: str, subject: Subject, folder: Path) -> SpeculativeConfig:
    """A draft network for a subject, with random weights."""
    if method == "draft_model":
        write(CASES[0], folder, num_hidden_layers=1, max_position_embeddings=1024)
    else:
        target = json.loads((subject.folder / "config.json").read_text())
        folder.mkdir()
        layer = {"num_hidden_layers": 1, "architectures": ["LlamaForCausalLM"]}
        kept = ["vocab_size", "intermediate_size", "head_dim", "max_position_embeddings"]
        kept += ["hidden_size", "num_attention_heads", "num_key_value_heads"]
        config = {**{name: target[name] for name in kept}, **layer}
        (folder / "config.json").write_text(json.dumps(config))
        width, inner = config["hidden_size"], config["intermediate_size"]
        q, kv = (config[f"num_{n}_heads"] * config["head_dim"] for n in ("attention", "key_value"))
        shapes = {"self_attn.q_proj": (q, width), "self_attn.k_proj": (kv, width)}
        shapes |= {"self_attn.v_proj": (kv, width), "self_attn.o_proj": (width, q)}
        shapes |= {"mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width)}
        shapes |= {"mlp.down_proj": (width, inner)}
        generator = torch.Generator().manual_seed(5)
        tensors = {
            f"layers.0.{name}.weight": torch.randn(*shape, generator=generator) * 0.3
            for name, shape in shapes.items()
        }
        tensors["fc.weight"] = torch.randn(width, 2 * width, generator=generator) * 0.3
        tensors["layers.0.post_attention_layernorm.weight"] = torch.ones(width)
        save_file(tensors, folder / "model.safetensors")
    return SpeculativeConfig(
        method=method,  # type: ignore[arg-type]
        model=str(folder),
        num_speculative_tokens=3,
        adaptive=False,
    )


@pytest.fixture(scope="module", params=cases(), ids=lambda case: case.name)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return Subject(request.param, tmp_path_factory.mktemp(request.param.name))


def each_subject(names: str, options: list[Any]) -> pytest.MarkDecorator:
    """By day each subject with one of the options, in turn."""
    rows = each_value(cases(), options)
    return pytest.mark.parametrize(("subject", names), rows, indirect=["subject"], ids=_name)


def _name(value: object) -> str | None:
    return getattr(value, "name", None)


def windows_of(runner: TorchRunner) -> tuple[int | None, ...]:
    return runner._blocks.cache.groups.windows


class Poisoned:
    """An engine; after each step, blocks with nothing that anybody may read are NaN."""

    def __init__(
        self,
        subject: Subject,
        monkeypatch: pytest.MonkeyPatch,
        *,
        num_graphed: int = 0,
        **options: Any,
    ) -> None:
        """num_graphed: drafts that graphs check, where layers have no states; 0: there are no
        graphs."""
        common = {
            "device": "cpu",
            "block_size": BLOCK_SIZE,
            "max_num_seqs": 4,
            "num_threads": 1,
            "num_gpu_blocks_override": 120,
            "max_num_batched_tokens": 64,
            "forecast_admission": False,
        }
        config = EngineConfig(model=str(subject.folder), **{**common, **options})
        self.runner = load_runner(config)
        self.seen = watch_logits(self.runner, monkeypatch)
        if num_graphed:
            num_graphed = 0 if subject.case.has_states else num_graphed
            self.graphs = emulate(self.runner, monkeypatch, num_graphed)
        self.core = EngineCore(config, self.runner, max_model_len=self.runner.max_model_len)
        self.tokens: dict[str, list[int]] = {}
        self.num_left_behind = 0
        self._poison()

    def _poison(self) -> None:
        drafting = self.runner._drafting
        drafted = drafting._cache.tensors if isinstance(drafting, ChainDrafting) else []
        for caches in (*self.runner._blocks.cache.tensors, *drafted):
            for tensor in caches:
                blank = self.core._cache.pool._blank
                if tensor.dtype == FP8:
                    tensor.view(torch.uint8)[blank] = FP8_NAN
                else:
                    tensor[blank] = math.nan
        self._poison_states()
        for request in self.core.scheduler.running.values():
            firsts = [held.first for held in request.block_table.layer_groups]
            self.num_left_behind = max([self.num_left_behind, *firsts])

    def _poison_states(self) -> None:
        """Those of rows that nobody has, and the snapshots of nothing, in all dtypes."""
        states, snapshots = self.runner._blocks.cache.states, self.core._cache.states
        if states is not None and snapshots is not None:
            holders = [
                *self.core.scheduler.running.values(),
                *self.core.scheduler._draining.values(),
            ]
            rows = {request.row for request in holders}
            num_rows = len(states.memory) - states.num_snapshots - 1
            free = [row for row in range(num_rows) if row not in rows]
            free += [num_rows + 1 + number for number in snapshots.pool._blank]
            states.memory[free] = 0xFF

    def add(self, name: str, prompt: list[int], max_tokens: int = 12) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        self.tokens[name] = []
        self.core.add_request(
            GenerateRequest(request_id=name, prompt_token_ids=prompt, params=params)
        )

    def run(self) -> None:
        while self.core.has_unfinished:
            for output in self.core.step():
                assert output.error is None, output.error
                self.tokens[output.request_id] += output.new_token_ids
            self.core.check_integrity()
            self._poison()


@each_subject("how", [("cpu", 64), ("torch", 7), ("cpu", 7), ("torch", 64)])
def test_logits(subject: Subject, how: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of prompts at once and in chunks, then of each token by itself."""
    backend, chunk = how
    if backend == "cpu" and not cpu.available():
        pytest.skip("no compiler for CPU kernels")
    engine = Poisoned(
        subject,
        monkeypatch,
        attention_backend=backend,
        max_num_batched_tokens=chunk,
        enable_prefix_caching=False,
    )
    assert windows_of(engine.runner) == GROUPS[subject.case.name]
    engine.add("a", subject.prompt)
    engine.run()
    assert engine.num_left_behind >= (PROMPT_LEN - WINDOW) // BLOCK_SIZE
    ours, theirs = torch.cat(engine.seen), subject.logits(subject.prompt + engine.tokens["a"][:-1])
    assert (ours - theirs[PROMPT_LEN - 1 :]).abs().max() < TOLERANCE


def test_logits_after_a_prefix_hit(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Poisoned(subject, monkeypatch)
    engine.add("first", subject.prompt)
    engine.run()
    engine.seen.clear()
    prompt = [*subject.prompt, *engine.tokens["first"][:7], 5, 6, 7]
    engine.add("second", prompt)
    engine.run()
    assert engine.core.stats().prefix_cache_hits == 52, "to the token"
    ours, theirs = torch.cat(engine.seen), subject.logits(prompt + engine.tokens["second"][:-1])
    assert (ours - theirs[len(prompt) - 1 :]).abs().max() < TOLERANCE


@each_subject(
    "options",
    [
        {},
        {"async_scheduling": True},
        {"enable_prefix_caching": False, "watermark": 0.0},
        {"swap_space": 0.01, "watermark": 0.0},
        {"speculative_config": DRAFTS},
    ],
)
def test_batches_generate_what_transformers_does(
    subject: Subject, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk, scarce = 16, "watermark" in options
    if scarce:
        # What one request needs at most, and a little more.
        need = peak_blocks(kinds_of(GROUPS[subject.case.name]), 73, BLOCK_SIZE, 2 * chunk)
        options = {**options, "num_gpu_blocks_override": need + 4}
    engine = Poisoned(subject, monkeypatch, max_num_batched_tokens=chunk, **options)
    prompts = {str(i): subject.prompt[i : 40 + i] + [3 + i] * i for i in range(4)}
    for name, prompt in prompts.items():
        engine.add(name, prompt, max_tokens=30)
    engine.run()
    for name, prompt in prompts.items():
        tokens = engine.tokens[name]
        expected = subject.logits(prompt + tokens)[len(prompt) - 1 : -1]
        chosen = expected.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
        assert len(tokens) == 30
        assert (expected.max(1).values - chosen).max() < TOLERANCE, "another token is likelier"
    if len(GROUPS[subject.case.name]) == 2:
        assert (engine.core.stats().num_preemptions > 0) == scarce


@each_subject(
    "how", list(itertools.product(NETWORKS, [{}, {"swap_space": 0.01, "watermark": 0.0}]))
)
def test_a_draft_network_keeps_its_keys_beside_what_sees_everything(
    subject: Subject,
    how: tuple[str, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same tokens, by the same drafts, as with blocks for all layers."""
    method, scarce = how
    if method == "eagle" and subject.case in FALLBACK_CASES:
        pytest.skip("EAGLE heads need a native model")
    speculative = save_network(method, subject, tmp_path / method)
    windows = GROUPS[subject.case.name] if None in GROUPS[subject.case.name] else (None,)
    if scarce:
        need = peak_blocks(kinds_of(windows), 73, BLOCK_SIZE, 32)
        scarce = {**scarce, "num_gpu_blocks_override": need + 6}

    def run(**options: Any) -> Poisoned:
        options = {"speculative_config": speculative, "max_num_batched_tokens": 16, **options}
        engine = Poisoned(subject, monkeypatch, **options)
        for i in range(4):
            engine.add(str(i), subject.prompt[i : 40 + i] + [3 + i] * i, max_tokens=30)
        engine.run()
        engine.add("again", [*subject.prompt[:40], *engine.tokens["0"][:9], 7], max_tokens=12)
        engine.run()
        return engine

    engine, plain = run(**scarce), run(disable_hybrid_kv_cache_manager=True)
    assert windows_of(engine.runner) == windows
    assert engine.tokens == plain.tokens
    if not scarce:
        assert engine.core.stats().spec_decode_num_draft_tokens > 50
        assert (
            engine.core.stats().spec_decode_num_accepted_tokens
            == plain.core.stats().spec_decode_num_accepted_tokens
        )


def test_keys_in_fp8_are_the_same_in_groups(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outputs(**options: Any) -> dict[str, list[int]]:
        engine = Poisoned(subject, monkeypatch, kv_cache_dtype="fp8", **options)
        for i in range(3):
            engine.add(str(i), subject.prompt[i : 40 + i], max_tokens=30)
        engine.run()
        return engine.tokens

    assert outputs() == outputs(disable_hybrid_kv_cache_manager=True)


@each_subject("num_drafts", [0, 3])
def test_graphs_look_up_the_blocks_of_every_group(
    subject: Subject, num_drafts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"speculative_config": DRAFTS} if num_drafts else {}

    def outputs(*, graphs: bool) -> dict[str, list[int]]:
        num_graphed = graphs * max(1, num_drafts)
        engine = Poisoned(
            subject, monkeypatch, attention_backend="torch", num_graphed=num_graphed, **options
        )
        for i in range(3):
            engine.add(str(i), subject.prompt[i : 40 + i], max_tokens=30)
        engine.run()
        if graphs:
            decoding, checking, _ = engine.graphs
            assert (checking if num_drafts else decoding).num_runs > 0
        return engine.tokens

    assert outputs(graphs=True) == outputs(graphs=False)


def test_the_same_memory_holds_more_and_smaller_blocks(subject: Subject) -> None:
    config = EngineConfig(model=str(subject.folder), device="cpu", kv_cache_memory_bytes=12 << 16)
    grouped = load_runner(config)
    single = load_runner(msgspec.structs.replace(config, disable_hybrid_kv_cache_manager=True))
    assert windows_of(grouped) == GROUPS[subject.case.name]
    assert windows_of(single) == (None,)
    # For the same bytes there are as many more blocks as there are fewer layers in each.
    num_layers = len(single._blocks.cache.layers)
    assert len(grouped._blocks.cache.layers) == num_layers
    assert grouped.num_blocks * len(grouped._blocks.cache.tensors) == single.num_blocks * num_layers
