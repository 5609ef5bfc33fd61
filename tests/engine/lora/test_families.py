"""An adapter for every linear layer of each native family equals the merged weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.llm import LLM, LoRARequest, SamplingParams
from tests.engine.lora.making import ALL_LINEAR, merge, read_weights, write_adapter
from tests.engine.models import families
from tests.pairs import each_value

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=1)
# What experts of a mixture share, and every projection of latent attention that is a layer.
TARGETS = (
    *ALL_LINEAR,
    "qkv_proj",
    "gate_up_proj",
    "q_a_proj",
    "q_b_proj",
    "kv_a_proj_with_mqa",
)
BY_DAY = ("qwen2", "phi3", "gemma3", "qwen3-moe-mixed", "deepseek-v3")
"""Each way to join projections, a mixture and latent attention."""
SEEING = ("qwen2.5-vl", "qwen3-vl")
"""Families that have no text model by itself."""
NAMES = dict.fromkeys((*BY_DAY, *SEEING)) | {
    case.name: None for case in families.CASES if case.around is None
}


@pytest.mark.parametrize("name", each_value(tuple(NAMES), most=len(BY_DAY)))
def test_equals_the_merged_weights(name: str, tmp_path: Path) -> None:
    case = next(case for case in families.CASES if case.name == name)
    model_dir = families.write(case, tmp_path / "base")
    present = {key.split(".")[-2] for key in _weight_names(model_dir) if ".experts." not in key}
    targets = tuple(target for target in TARGETS if target in present)
    adapter = write_adapter(tmp_path / "adapter", model_dir, rank=8, targets=targets, strength=0.1)
    merged = LLM(merge(model_dir, adapter, tmp_path / "merged"), device="cpu", num_threads=1)
    llm = LLM(model_dir, enable_lora=True, device="cpu", num_threads=1)
    prompts = [*case.prompts, case.prompts[0]]
    request = LoRARequest("it", adapter)
    asked = [*[request] * len(case.prompts), None]
    results = llm.generate(prompts, GREEDY, lora_request=asked)
    expected = merged.generate(prompts, GREEDY)
    for result, wanted in zip(results[:-1], expected, strict=False):
        found, right = result.outputs[0], wanted.outputs[0]
        assert found.token_ids == right.token_ids
        assert found.cumulative_logprob == pytest.approx(right.cumulative_logprob, abs=1e-3)
    assert results[-1].outputs[0].cumulative_logprob != pytest.approx(
        results[0].outputs[0].cumulative_logprob, abs=1e-3
    )


def _weight_names(model_dir: Path) -> list[str]:
    return list(read_weights(model_dir))
