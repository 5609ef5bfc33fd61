"""Adapters as PEFT itself makes, saves and computes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from engine.llm import LLM, LoRARequest, SamplingParams
from tests.engine import toys

# It still uses names that transformers is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

CONFIGS: dict[str, dict[str, Any]] = {
    "all-linear": {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"},
    "attention": {"r": 16, "lora_alpha": 8, "target_modules": ["q_proj", "k_proj", "v_proj"]},
    "pattern": {"r": 4, "lora_alpha": 4, "target_modules": r".*\.1\.mlp\.(gate|down)_proj"},
    "rslora": {"r": 64, "lora_alpha": 16, "target_modules": ["o_proj", "up_proj"]},
}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write_llama(tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize("name", CONFIGS)
def test_logprobs_are_pefts(model_dir: Path, tmp_path: Path, name: str) -> None:
    # Imported here: with it comes most of transformers.
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install peft")
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        init_lora_weights=False,  # random, so that it changes something
        use_rslora=name == "rslora",
        **CONFIGS[name],
    )
    base = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    torch.manual_seed(0)
    model = peft.get_peft_model(base, config).eval()
    model.save_pretrained(tmp_path / "adapter")

    prompt = [5, 9, 30, 7, 12]
    with torch.inference_mode():
        tokens = model.generate(
            torch.tensor([prompt]), max_new_tokens=12, min_new_tokens=12, do_sample=False
        )[0]
        expected = model(tokens[None]).logits[0].log_softmax(-1)

    llm = LLM(model_dir, enable_lora=True, max_lora_rank=64, device="cpu", num_threads=1)
    (result,) = llm.generate(
        {"prompt_token_ids": prompt},
        SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=0),
        lora_request=LoRARequest(name, tmp_path / "adapter"),
    )
    output = result.outputs[0]
    assert output.token_ids == tokens[len(prompt) :].tolist()
    assert output.logprobs is not None
    for place, found in enumerate(output.logprobs):
        token_id = output.token_ids[place]
        wanted = float(expected[len(prompt) - 1 + place, token_id])
        assert found[token_id].logprob == pytest.approx(wanted, abs=1e-4)
