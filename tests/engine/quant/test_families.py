"""Which families can be quantized, and that each of them is, as ``sluice models`` says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from engine.architectures import QuantizationMethod
from engine.errors import ConfigError, ModelLoadError
from engine.llm import LLM, SamplingParams
from engine.quant.transformers_linears import QuantizedLinear
from tests.engine.models.families import CASES, FALLBACK_CASES, Case, write
from tests.engine.quant import checkpoints
from tests.engine.quant.test_layouts import LAYOUTS
from tests.pairs import each_value

MATRIX = re.compile(
    r"(_proj|in_proj_\w+|kv_a_proj_with_mqa|put_linear|(experts\.\d+|feed_forward)\.w[123])\.weight$"
)
KEPT = re.compile(r"kv_b_proj\.weight$")
"""Dequantized anyway."""
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
FIRST = {case.family: case for case in reversed(CASES) if case.name != "gpt-oss"}
"""One case of each family; of gpt-oss's stored experts ``test_mxfp4.py``."""


def load(folder: Path, quantization: QuantizationMethod | None = None, **options: Any) -> LLM:
    return LLM(
        folder,
        block_size=4,
        num_gpu_blocks_override=100,
        num_threads=1,
        quantization=quantization,
        **{"device": "cpu", **options},
    )


def texts(llm: LLM, case: Case) -> list[list[int]]:
    return [r.outputs[0].token_ids for r in llm.generate(list(case.prompts), GREEDY)]


one_of_a_family = pytest.mark.parametrize("case", FIRST.values(), ids=lambda case: case.name)


@one_of_a_family
def test_fp8_while_loading(case: Case, tmp_path: Path) -> None:
    """The text of a checkpoint whose weights have been rounded beforehand."""
    folder = write(case, tmp_path)
    got = texts(load(folder, "fp8"), case)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if MATRIX.search(name) and not KEPT.search(name):
            _, tensors[name] = checkpoints.fp8(tensor, np.random.default_rng())
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert got == texts(load(folder), case)


@one_of_a_family
def test_int4_checkpoint(case: Case, tmp_path: Path) -> None:
    """The text of its dequantized twin."""
    whole_groups = {"q_lora_rank": 32} if "q_lora_rank" in case.fields else {}
    folder = write(case, tmp_path, **whole_groups)
    quantize, document = LAYOUTS["awq"]
    twin = checkpoints.quantize_in_place(folder, quantize, document, MATRIX)
    got = texts(load(folder), case)
    checkpoints.restore(folder, twin)
    assert got == texts(load(folder), case)


of_transformers = pytest.mark.parametrize("case", FALLBACK_CASES, ids=lambda case: case.name)


@pytest.mark.parametrize("case", each_value(FALLBACK_CASES, most=4), ids=lambda case: case.name)
def test_fp8_while_transformers_loads(case: Case, tmp_path: Path) -> None:
    """The text of a checkpoint whose weights have been rounded beforehand."""
    folder = write(case, tmp_path)
    llm = load(folder, "fp8")
    round_weights(case, folder, llm)
    assert texts(llm, case) == texts(load(folder), case)


@pytest.mark.gpu
@of_transformers
def test_fp8_while_transformers_loads_on_a_gpu(case: Case, tmp_path: Path) -> None:
    """In 16 bits two roundings of a number differ, but by far less than FP8 changes.

    Of few tokens in a step: more would be rounded themselves. The weights are such that float16 has
    them: rounded to it first, some would come to another number in FP8.
    """
    wide = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 8}
    folder = write(case, tmp_path, **wide)
    tensors = load_file(folder / "model.safetensors")
    halves = {name: tensor.half().to(tensor.dtype) for name, tensor in tensors.items()}
    save_file(halves, folder / "model.safetensors", {"format": "pt"})
    where: dict[str, Any] = {"device": "cuda", "dtype": "float16", "max_num_batched_tokens": 16}
    plain, llm = logprobs(load(folder, **where), case), load(folder, "fp8", **where)
    round_weights(case, folder, llm)
    want = logprobs(load(folder, **where), case)
    # By the median, since a token may fall to another expert.
    assert np.median(abs(logprobs(llm, case) - want)) < 0.2 * np.median(abs(plain - want))


def logprobs(llm: LLM, case: Case) -> np.ndarray:
    """Of all tokens of the prompts but their first ones."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    found = []
    for result in llm.generate(list(case.prompts), params):
        of_prompt = result.prompt_logprobs or []
        for token, places in zip(result.prompt_token_ids, of_prompt, strict=True):
            found += [] if places is None else [places[token].logprob]
    return np.array(found)


def round_weights(case: Case, folder: Path, llm: LLM) -> None:
    """In the checkpoint, those that ``llm`` has in FP8."""
    modules = dict(llm._core._runner._forward_pass.executors.eager.model._model.named_modules())  # type: ignore[attr-defined]
    rounded = {n for n, module in modules.items() if isinstance(module, QuantizedLinear)}
    assert len(rounded) >= 2 * 4, "of two layers"
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        path = name.removesuffix(".weight")
        if path in rounded or f"{llm_prefix(modules)}{path}" in rounded:
            turned = case.architecture == "GPT2LMHeadModel"  # keeps them the other way round
            weight = tensor.T.contiguous() if turned else tensor
            _, meant = checkpoints.fp8(weight, np.random.default_rng())
            tensors[name] = meant.T.contiguous() if turned else meant
            rounded -= {path, f"{llm_prefix(modules)}{path}"}
    assert not rounded
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def llm_prefix(modules: dict[str, object]) -> str:
    """What some checkpoints leave out before their names."""
    return next(name for name in modules if name) + "."


def test_a_checkpoint_that_transformers_would_have_to_dequantize(tmp_path: Path) -> None:
    folder = write(FALLBACK_CASES[0], tmp_path)
    with pytest.raises(ConfigError, match=r"'awq', but .* has no quantization_config"):
        load(folder, "awq")
    fields = json.loads((folder / "config.json").read_text())
    fields["quantization_config"] = {"quant_method": "awq", "bits": 4, "group_size": 16}
    (folder / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ModelLoadError, match="quantization_config: quantized weights"):
        load(folder)
