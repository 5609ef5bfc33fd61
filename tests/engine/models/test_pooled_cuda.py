"""Embeddings and scores on a GPU against transformers on a CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from engine.llm import LLM
from tests.engine.models.test_pooled import (
    CROSS_ENCODERS,
    EMBEDDERS,
    POOLED,
    PROMPTS,
    Case,
    name_of,
)

pytestmark = pytest.mark.gpu

WIDE = {"hidden_size": 256, "head_dim": 64}
"""Heads that the kernels of decoders serve."""


def for_gpu(case: Case) -> Case:
    if case.architecture.startswith(("Qwen", "Gemma")):
        return replace(case, fields={**case.fields, **WIDE})
    return case


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", [for_gpu(case) for case in EMBEDDERS], ids=name_of)
@torch.inference_mode()
def test_vectors_are_those_of_transformers(case: Case, dtype: str, tmp_path: Path) -> None:
    model = case.save(tmp_path)
    base = getattr(model, model.base_model_prefix, model)
    llm = LLM(
        tmp_path,
        device="cuda",
        dtype=dtype,
        num_gpu_blocks_override=40,
        max_num_batched_tokens=128,
        seed=1,
    )
    found = llm.embed([{"prompt_token_ids": prompt} for prompt in PROMPTS])
    for prompt, output in zip(PROMPTS, found, strict=True):
        wanted = POOLED[case.pooling](base(torch.tensor([prompt])).last_hidden_state[0])
        embedding = torch.tensor(output.outputs.embedding)
        if dtype == "bfloat16":
            assert F.cosine_similarity(embedding, wanted, dim=0) > 0.99
        else:
            wanted = F.normalize(wanted, dim=-1) if case.normalize else wanted
            torch.testing.assert_close(embedding, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("case", [for_gpu(case) for case in CROSS_ENCODERS], ids=name_of)
@torch.inference_mode()
def test_scores_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    model = case.save(tmp_path)
    llm = LLM(tmp_path, device="cuda", dtype="float32", num_gpu_blocks_override=40)
    documents = ["the cat sat", "naïve café " * 5, "x"]
    found = llm.score("the mat", documents)
    pairs = llm.get_tokenizer().encode_pairs([("the mat", text) for text in documents])
    for output, (ids, second) in zip(found, pairs, strict=True):
        inputs = {"input_ids": torch.tensor([ids])}
        if case.architecture.startswith("Bert"):
            assert second is not None
            inputs["token_type_ids"] = torch.tensor(
                [[int(place >= second) for place in range(len(ids))]]
            )
        (logit,) = model(**inputs).logits[0]
        assert output.outputs.score == pytest.approx(torch.sigmoid(logit).item(), abs=1e-3)
