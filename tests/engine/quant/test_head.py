"""The language model head in FP8: the text, and the logits, of a twin with its rounded numbers."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.errors import ModelLoadError
from engine.layers.linear import Linear, TiedLinear
from engine.layers.parameter import Weight
from engine.llm import LLM
from engine.models.llama import ForCausalLM
from engine.quant.head import ROUNDED
from engine.quant.transformers_linears import quantize_head
from engine.runner.startup.model import load_model, read_facts
from engine.sampling_params import SamplingParams
from kernels import quantized, reference
from tests.engine.models.families import FALLBACK_CASES, write
from tests.engine.quant import checkpoints
from tests.engine.quant.test_layouts import LAYOUTS, PROMPTS, texts
from tests.engine.runner.tiny_llama import save_tiny_llama

CPU = torch.device("cpu")
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
HEAD_TOO = re.compile(r"(_proj|lm_head)\.weight$")


def rounded(weight: torch.Tensor) -> torch.Tensor:
    _, meant = checkpoints.fp8(weight, np.random.default_rng())
    return meant


def write_twin(folder: Path, twin: Path) -> None:
    """``twin`` becomes the model of ``folder`` with a head of its own, of rounded numbers."""
    shutil.copytree(folder, twin)
    tensors = load_file(twin / "model.safetensors")
    tensors[HEAD] = rounded(tensors.get(HEAD, tensors[EMBEDDING]))
    save_file(tensors, twin / "model.safetensors", {"format": "pt"})
    document = json.loads((twin / "config.json").read_text())
    (twin / "config.json").write_text(json.dumps({**document, "tie_word_embeddings": False}))


@pytest.fixture
def as_on_a_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether weights stay as a GPU keeps them, multiplied in plain torch."""
    if request.param:
        monkeypatch.setattr(quantized, "serves", lambda tensor: True)
    return bool(request.param)


everywhere = pytest.mark.parametrize("as_on_a_gpu", [False, True], indirect=True)


@everywhere
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("vocab_size", [203, 208])
def test_it_writes_the_text_of_its_twin(
    tied: bool, vocab_size: int, as_on_a_gpu: bool, tmp_path: Path
) -> None:
    """203 is no multiple of what kernels multiply with: rows are added and their logits cut off."""
    folder, twin = tmp_path / "plain", tmp_path / "twin"
    save_tiny_llama(folder, vocab_size=vocab_size, tie_word_embeddings=tied)
    write_twin(folder, twin)
    got = texts(folder, quantize_lm_head=True)
    assert got == texts(twin)
    assert got != texts(folder), "rounding changes some of these texts"


def hidden_and_head(folder: Path, **options: Any) -> tuple[torch.Tensor, ForCausalLM]:
    asked = EngineConfig(model=str(folder), device="cpu", **options)
    model = load_model(
        asked,
        read_facts(asked),
        max_model_len=64,
        dtype=torch.float32,
        device=CPU,
        report=lambda _: None,
    )
    assert isinstance(model, ForCausalLM)
    return torch.randn(5, 48, generator=torch.Generator().manual_seed(3)), model


@everywhere
@pytest.mark.parametrize("tied", [False, True])
def test_its_logits_are_those_of_rounded_weights(
    tied: bool, as_on_a_gpu: bool, tmp_path: Path
) -> None:
    save_tiny_llama(tmp_path, tie_word_embeddings=tied)
    x, model = hidden_and_head(tmp_path, quantize_lm_head=True)
    tensors = load_file(tmp_path / "model.safetensors")
    plain = tensors[EMBEDDING if tied else HEAD]
    want = x.double() @ rounded(plain).double().T
    logits = model.logits(x)
    assert logits.shape == (5, 203)
    assert logits.is_contiguous()
    torch.testing.assert_close(logits.double(), want, rtol=1e-5, atol=1e-5)
    assert isinstance(model.lm_head, TiedLinear if tied else Linear)
    assert (model.lm_head.quantized is not None) == as_on_a_gpu
    embedded = model.model.embed_tokens(torch.arange(203))
    assert torch.equal(embedded, tensors[EMBEDDING]), "the embedding stays as it is"


def test_beside_other_quantization(tmp_path: Path) -> None:
    """Whose head is not quantized."""
    stored, plain = checkpoints.write(tmp_path, *LAYOUTS["awq"])
    write_twin(plain, tmp_path / "twin with its head")
    assert texts(stored, quantize_lm_head=True) == texts(tmp_path / "twin with its head")


def test_with_all_that_reads_logits(tmp_path: Path) -> None:
    """Drafts are judged, log-probabilities told and tokens drawn by the rounded head's."""
    folder, twin = tmp_path / "plain", tmp_path / "twin"
    save_tiny_llama(folder, tie_word_embeddings=True)
    write_twin(folder, twin)
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
    params = [
        SamplingParams(temperature=0.0, max_tokens=12, logprobs=4, prompt_logprobs=2),
        SamplingParams(temperature=0.9, seed=4, max_tokens=12, repetition_penalty=1.2),
    ]

    def results(model: Path, **options: Any) -> list[Any]:
        llm = LLM(
            model,
            device="cpu",
            skip_tokenizer_init=True,
            num_gpu_blocks_override=64,
            num_threads=1,
            speculative_config=drafts,
            **options,
        )
        return llm.generate(PROMPTS, params)

    for got, want in zip(results(folder, quantize_lm_head=True), results(twin), strict=True):
        assert got.outputs[0].token_ids == want.outputs[0].token_ids
    (first, _), (second, _) = results(folder, quantize_lm_head=True), results(twin)
    assert first.outputs[0].logprobs is not None
    for step, of_twin in zip(first.outputs[0].logprobs, second.outputs[0].logprobs, strict=True):
        assert step.keys() == of_twin.keys()
        for token in step:
            assert step[token].logprob == pytest.approx(of_twin[token].logprob, abs=1e-3)


STORED = [
    "compressed-tensors fp8 per channel",
    "compressed-tensors fp8 per tensor",
    "compressed-tensors int4",
    "fp8",
    "fp8 in blocks",
    "gptq",
    "modelopt",
]


@everywhere
@pytest.mark.parametrize("layout", STORED)
def test_a_head_that_the_checkpoint_has_quantized(
    layout: str, as_on_a_gpu: bool, tmp_path: Path
) -> None:
    """It is read as it is stored, whatever the setting."""
    quantize, document = LAYOUTS[layout]
    document = {**document, **({"lm_head": True} if layout == "gptq" else {})}
    if "ignore" in document:
        document["ignore"] = []
    # Eight features of four bits share a word.
    save_tiny_llama(tmp_path, vocab_size=208, intermediate_size=96)
    twin = checkpoints.quantize_in_place(tmp_path, quantize, document, HEAD_TOO)
    got = texts(tmp_path)
    assert texts(tmp_path, quantize_lm_head=True) == got
    checkpoints.restore(tmp_path, twin)
    assert got == texts(tmp_path)


def test_a_head_of_transformers_own_models(tmp_path: Path) -> None:
    (case,) = (case for case in FALLBACK_CASES if case.name == "olmo2")
    folder, twin = write(case, tmp_path / "plain"), tmp_path / "twin"
    got = texts(folder, quantize_lm_head=True)
    write_twin(folder, twin)
    assert got == texts(twin)
    assert got != texts(folder)


def test_a_head_that_is_no_linear_layer_is_refused() -> None:
    class Odd(torch.nn.Module):
        def get_output_embeddings(self) -> torch.nn.Module:
            return torch.nn.Bilinear(2, 2, 2)

    with pytest.raises(ModelLoadError, match="quantize_lm_head: the head of Odd is Bilinear"):
        quantize_head(Odd(), None, CPU)  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab_size", [128256, 32003])
@pytest.mark.parametrize("tokens", [1, 16, 17, 64, 200])
def test_on_a_gpu_the_error_is_that_of_rounding(
    tokens: int, vocab_size: int, dtype: torch.dtype
) -> None:
    """Against float64 with the rounded numbers: of x, too, where more rows than a few are."""
    device = torch.device("cuda")
    generator = torch.Generator(device=device).manual_seed(0)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype, device=device)

    head = TiedLinear(Weight(randn(vocab_size, 1024)))
    head.quantize(ROUNDED.weight)
    head.pack()
    assert head.quantized is not None
    x = randn(tokens, 1024)
    meant = x.double()
    if head.quantized.rounds(tokens):
        values, scale = reference.quantize_rows(x)
        meant = values.double() * scale
    want = meant @ head.quantized.dequantize().double().T
    got = head(x)
    assert got.shape == (tokens, vocab_size)
    assert float((got.double() - want).norm() / want.norm()) < 6e-3
