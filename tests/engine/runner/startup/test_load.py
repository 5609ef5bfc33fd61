from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError, ModelLoadError
from engine.layers.linear import Linear, TiedLinear
from engine.layers.parameter import Weight
from engine.messages import LoadProgress
from engine.models.base import ModelConfig
from engine.runner import load_runner, memory
from engine.runner.graphs.sized import capture_sizes
from engine.runner.startup import load
from engine.runner.startup.model import load_model
from engine.runner.startup.target import resolve
from engine.spec.draft_model import DraftModel
from kernels import gemm, quantized, tuning
from kernels.kept_choices import KeptChoices
from tests.engine.runner.harness import Generation, Harness
from tests.engine.runner.tiny_llama import MAX_MODEL_LEN, VOCAB_SIZE, save_tiny_llama


def changed(config: EngineConfig, **changes: Any) -> EngineConfig:
    return msgspec.structs.replace(config, **changes)


def test_a_runner_knows_what_the_core_asks(tiny_config: EngineConfig) -> None:
    runner = load_runner(tiny_config)
    assert runner.vocab_size == VOCAB_SIZE
    assert runner.max_model_len == MAX_MODEL_LEN
    assert runner.num_blocks == 400
    assert runner.eos_token_ids == frozenset()
    assert runner.device == torch.device("cpu")


def test_progress_never_goes_back_and_ends_at_one(tiny_config: EngineConfig) -> None:
    seen: list[LoadProgress] = []
    load_runner(tiny_config, on_progress=seen.append)
    fractions = [progress.fraction for progress in seen]
    assert fractions == sorted(fractions)
    assert fractions[0] == 0.0
    assert fractions[-1] == 1.0
    assert all(progress.message for progress in seen)


def test_memory_decides_the_number_of_blocks(tiny_config: EngineConfig) -> None:
    # Two caches of 3 layers of 2 heads of 8 float32, 4 tokens a block.
    block_bytes = 2 * 3 * 2 * 8 * 4 * 4
    config = changed(
        tiny_config, num_gpu_blocks_override=None, kv_cache_memory_bytes=50 * block_bytes + 1
    )
    assert load_runner(config).num_blocks == 50
    default = changed(tiny_config, num_gpu_blocks_override=None)
    assert load_runner(default).num_blocks == memory.CPU_KV_CACHE_BYTES // block_bytes


def test_without_a_length_the_cache_may_shorten_it(tiny_config: EngineConfig) -> None:
    assert load_runner(changed(tiny_config, num_gpu_blocks_override=10)).max_model_len == 40


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_model_len": MAX_MODEL_LEN + 1}, "exceeds the model's 160"),
        ({"max_model_len": 41, "num_gpu_blocks_override": 10}, "does not fit the KV cache of 10"),
        ({"num_gpu_blocks_override": None, "kv_cache_memory_bytes": 9}, "9 bytes hold no block"),
    ],
)
def test_impossible_settings_are_refused(
    tiny_config: EngineConfig, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_runner(changed(tiny_config, **changes))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(tiny_config: EngineConfig) -> None:
    with pytest.raises(ConfigError, match="torch sees no GPU"):
        load_runner(changed(tiny_config, device="cuda"))


def test_a_missing_model_is_refused(tiny_config: EngineConfig, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="there is no folder"):
        load_runner(changed(tiny_config, model=str(tmp_path / "nowhere")))


def test_sharded_tied_biased_checkpoints_load(tmp_path: Path, tiny_config: EngineConfig) -> None:
    """Everything a checkpoint may vary in, at once, still decodes as transformers does."""
    from transformers import AutoModelForCausalLM

    save_tiny_llama(
        tmp_path,
        seed=3,
        max_shard_size="20KB",
        tie_word_embeddings=True,
        attention_bias=True,
        mlp_bias=True,
        head_dim=12,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 300.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 40,
        },
    )
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    runner = load_runner(changed(tiny_config, model=str(tmp_path)))
    generation = Generation("a", list(range(60)), 40)
    Harness(runner, block_size=4, max_rows=4).run([generation])
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ids = model.generate(
        torch.tensor([generation.prompt]),
        attention_mask=torch.ones(1, 60, dtype=torch.int64),
        max_new_tokens=40,
        do_sample=False,
        pad_token_id=0,
    )
    assert generation.output == ids[0, 60:].tolist()


def test_bfloat16_runs_on_a_cpu_when_asked(tiny_config: EngineConfig) -> None:
    runner = load_runner(changed(tiny_config, dtype="bfloat16"))
    generations = [Generation(str(i), list(range(5 + 9 * i)), 10) for i in range(3)]
    Harness(runner, block_size=4, max_rows=4).run(generations, chunk_size=8)
    assert all(len(g.output) == 10 for g in generations)


def test_loading_does_not_import_transformers(tiny_config: EngineConfig) -> None:
    code = (
        "import sys\n"
        "from engine.config import EngineConfig\n"
        "from engine.runner import load_runner\n"
        f"load_runner(EngineConfig(model={tiny_config.model!r}, num_gpu_blocks_override=99))\n"
        "assert 'transformers' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("quantize_lm_head", [False, True])
def test_the_fastest_products_serve_the_model_and_what_drafts_for_it(
    quantize_lm_head: bool, tiny_config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, which multiplies with 16-bit and FP8 weights as they are."""
    monkeypatch.setattr(quantized, "serves", lambda tensor: True)
    target = resolve(changed(tiny_config, dtype="bfloat16", quantize_lm_head=quantize_lm_head))
    model, draft = (
        load_model(
            target.config,
            target.facts,
            max_model_len=target.asked_len,
            dtype=target.dtype,
            device=target.device,
            report=lambda _: None,
        )
        for _ in range(2)
    )
    assert isinstance(target.facts, ModelConfig)
    network = DraftModel(draft, target.facts)
    biased = next(module for module in model.modules() if isinstance(module, Linear))
    biased.bias = Weight(torch.zeros(len(biased.weight.data)))
    measured: list[tuning.Use] = []
    told: list[LoadProgress] = []
    fastest = gemm.Gemms({})

    def measure(
        uses: Iterable[tuning.Use],
        _: KeptChoices,
        batches: list[int],
        on_measuring: Callable[[], None],
    ) -> gemm.Gemms:
        assert [progress.message for progress in told] == ["Loading GEMMs"]
        on_measuring()
        measured.extend(uses)
        assert batches == capture_sizes(target.config.num_seqs)
        return fastest

    monkeypatch.setattr(tuning, "measure", measure)
    monkeypatch.setattr(KeptChoices, "of", lambda device: KeptChoices(Path(str(device))))
    monkeypatch.setenv("SLUICE_KERNEL_CACHE", "/volume")
    load._measure_gemms(target, model, network, told.append)
    assert told[-1].message.startswith("Measuring GEMMs, once for this model")
    assert told[-1].message.endswith("kept in /volume")
    linears = [
        module
        for part in (model, network)
        for module in part.modules()
        if isinstance(module, Linear | TiedLinear)
    ]
    assert len(linears) == 2 * (1 + 3 * 4), "the head, and four of each layer"
    assert all(linear.gemms is fastest for linear in linears)
    biases = [use.bias for use in measured if use.bias is not None]
    assert [bias.data_ptr() for bias in biases] == [biased.bias.data.data_ptr()]
    heads = [use for use in measured if len(use.weight) == VOCAB_SIZE]
    assert len(heads) == 2 * (not quantize_lm_head)
    assert all(use.max_rows == target.config.num_seqs for use in heads)
    assert len(measured) - len(heads) == 2 * 3 * 4
    assert sum(use.gated for use in measured) == 2 * 3
