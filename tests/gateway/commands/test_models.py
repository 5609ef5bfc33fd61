from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine.config import EngineConfig
from engine.models.registry import read_config
from engine.runner.memory import block_bytes
from engine.runner.startup import estimate
from tests.engine.models.families import CASES, write
from tests.gateway.test_cli import complaint, sluice

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "dtype": "bfloat16",
}


def test_it_lists_what_runs_and_on_what(tmp_path: Path) -> None:
    done = sluice("models", cwd=tmp_path)
    assert done.returncode == 0
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    methods = "fp8, awq, gptq, compressed-tensors, modelopt"
    assert ["Qwen3ForCausalLM", "Qwen 3", "native", methods] in rows
    assert ["GPT2LMHeadModel", "", "transformers", "fp8"] in rows
    assert len({row[0] for row in rows}) == len(rows)
    assert "Other decoders" not in done.stdout


def test_on_a_terminal_it_says_that_others_may_run(tmp_path: Path) -> None:
    done = sluice("models", cwd=tmp_path, FORCE_COLOR="1", NO_COLOR="1", COLUMNS="120")
    assert "Other decoders run on transformers" in done.stdout


def config_of(folder: Path, fields: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(fields))
    return str(folder)


def needs(stdout: str) -> list[list[str]]:
    return [line.split("\t") for line in stdout.splitlines() if line.count("\t") == 6]


def test_what_a_model_takes_follows_from_its_config_alone(tmp_path: Path) -> None:
    done = sluice("models", "check", config_of(tmp_path, LLAMA), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("LlamaForCausalLM: Llama 2, 3, 3.x: native\n- there is no tok")
    rows = needs(done.stdout)
    assert [row[:2] for row in rows] == [
        [weights, size] for weights in ("as stored", "fp8") for size in ("1", "2", "4", "8")
    ]
    # 8,030,261,248 parameters of 16 bits; keys and values of 32 layers of 8 heads of 128.
    assert rows[0][2:5] == ["14.96", "0.0", f"{4096 * 32 * 2 * 8 * 128 * 2 / 2**20:.1f}"]
    assert rows[0][5] == "131072"


def test_fewer_bytes_for_each_gpu_leave_room_for_more_requests(tmp_path: Path) -> None:
    folder = config_of(tmp_path, LLAMA)
    whole, half, quarter, _, in_fp8, *_ = estimate.check(folder, None, 80 << 30).needs
    assert whole.num_requests < half.num_requests < quarter.num_requests == 512
    assert whole.num_requests < in_fp8.num_requests
    whole, *_, in_fp8, _, _, _ = estimate.check(folder, None, 16 << 30).needs
    assert (whole.longest, whole.num_requests) == (0, 0)
    assert in_fp8.longest >= 4096 > 0 < in_fp8.num_requests


@pytest.mark.parametrize("name", ["qwen3.5-moe", "mistral"])
def test_weights_are_counted_to_the_byte(name: str, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == name)
    folder = write(case, tmp_path)
    found = estimate.check(str(folder), None, 1 << 30)
    tensors = load_file(folder / "model.safetensors").values()
    # Kept in float32 as in the checkpoint.
    assert found.needs[0].weight_bytes == sum(tensor.nbytes for tensor in tensors)
    block = block_bytes(read_config(folder), EngineConfig(model="").block_size, torch.float32)
    assert found.needs[0].request_bytes % block == 0
    assert (found.needs[0].state_bytes > 0) == case.has_states


def test_what_nobody_can_serve_names_what_is_nearest(tmp_path: Path) -> None:
    folder = config_of(tmp_path, {"architectures": ["Qwen99ForCausalLM"], "model_type": "qwen99"})
    found = estimate.check(folder, None, 80 << 30)
    assert not found.runs_on
    assert "the nearest native architecture is Qwen" in found.missing[0]


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    done = sluice("models", "check", "not/at all", cwd=tmp_path)
    assert complaint(done).startswith("there is no folder 'not/at all'")
