"""Embeddings and scores of random small checkpoints against transformers, with the pooling that
sentence-transformers' files ask for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers.processors import TemplateProcessing
from torch.nn import functional as F

from engine.core import EngineCore
from engine.errors import ConfigError, InvalidRequest, ModelLoadError
from engine.llm import LLM, SamplingParams, TokensPrompt
from engine.messages import GenerateRequest
from engine.pooling import PoolingParams, cosine
from tests.engine import toys

COMMON: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 160,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_labels": 1,
}
MODERN = {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 8, "norm_bias": True}
QWEN = {"num_key_value_heads": 2, "head_dim": 16}
PROMPTS = [[1, *range(5, 5 + n), 2] for n in (3, 41, 3, 17, 100, 5, 18, 1, 64, 2)]
POOLED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cls": lambda hidden: hidden[0],
    "mean": lambda hidden: hidden.mean(0),
    "max": lambda hidden: hidden.max(0).values,
    "lasttoken": lambda hidden: hidden[-1],
}


@dataclass(frozen=True)
class Case:
    architecture: str
    pooling: str = "mean"
    normalize: bool = True
    fields: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: Path) -> Any:
        torch.manual_seed(0)
        tokenizer = toys.byte_level()
        tokenizer.post_processor = TemplateProcessing(
            single="<s> $A </s>",
            pair="<s> $A </s> $B:1 </s>:1",
            special_tokens=[("<s>", 1), ("</s>", 2)],
        )
        model_class = getattr(transformers, self.architecture)
        fields = {**COMMON, "vocab_size": tokenizer.get_vocab_size(), **self.fields}
        config = model_class.config_class(**fields, attn_implementation="eager")
        model = model_class(config).eval()  # Elsewhere, some versions leave out the soft cap.
        for name, weight in model.named_parameters():
            if "norm" in name.lower() or "bias" in name:  # which are all alike at first
                torch.nn.init.normal_(weight, float("norm" in name.lower()), 0.2)
        model.save_pretrained(folder)
        toys.write_model_folder(folder, tokenizer=tokenizer)
        if not self.architecture.endswith("ForSequenceClassification"):
            write_modules(folder, self.pooling, normalize=self.normalize)
        return model


def write_modules(folder: Path, pooling: str, *, normalize: bool) -> None:
    """The files of sentence-transformers."""
    names = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "", "type": f"st.models.{name}"}
        for i, name in enumerate(names)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    legacy = f"pooling_mode_{pooling}" + {"cls": "_token", "lasttoken": ""}.get(pooling, "_tokens")
    stated = {"word_embedding_dimension": 48, legacy: True, "include_prompt": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(stated))


EMBEDDERS = [
    Case("BertModel", "mean"),
    Case("BertModel", "max", normalize=False),
    Case("BertForMaskedLM", "cls"),
    Case("XLMRobertaModel", "cls", fields={"type_vocab_size": 1, "pad_token_id": 3}),
    Case("RobertaForMaskedLM", "mean", fields={"pad_token_id": 3}),
    Case("ModernBertModel", "mean", fields=MODERN),
    Case("ModernBertForMaskedLM", "cls", normalize=False, fields={**MODERN, "norm_bias": False}),
    Case("Qwen3ForCausalLM", "lasttoken", fields=QWEN),
    Case("Qwen3Model", "lasttoken", normalize=False, fields=QWEN),
    Case("Gemma2ForCausalLM", "lasttoken", fields={**QWEN, "sliding_window": 9}),
]


def name_of(case: Case) -> str:
    return f"{case.architecture}-{case.pooling}"


@pytest.mark.parametrize("case", EMBEDDERS, ids=name_of)
@torch.inference_mode()
def test_vectors_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    model = case.save(tmp_path)
    base = getattr(model, model.base_model_prefix, model)
    # Steps of few tokens: decoders take long prompts in chunks, encoders wait for a step's room.
    llm = LLM(tmp_path, num_gpu_blocks_override=40, max_num_batched_tokens=128, seed=1)
    found = llm.embed([{"prompt_token_ids": prompt} for prompt in PROMPTS])
    for prompt, output in zip(PROMPTS, found, strict=True):
        hidden = base(torch.tensor([prompt])).last_hidden_state[0]
        wanted = POOLED[case.pooling](hidden)
        wanted = F.normalize(wanted, dim=-1) if case.normalize else wanted
        torch.testing.assert_close(
            torch.tensor(output.outputs.embedding), wanted, rtol=1e-4, atol=1e-4
        )
    llm._core.check_integrity()  # type: ignore[attr-defined]


CROSS_ENCODERS = [
    Case("BertForSequenceClassification"),
    Case("XLMRobertaForSequenceClassification", fields={"type_vocab_size": 1, "pad_token_id": 3}),
    Case("ModernBertForSequenceClassification", fields=MODERN),
    Case(
        "ModernBertForSequenceClassification",
        "mean",
        fields={**MODERN, "classifier_pooling": "mean"},
    ),
    Case("Qwen3ForSequenceClassification", fields=QWEN),
]


@pytest.mark.parametrize("case", CROSS_ENCODERS, ids=name_of)
@torch.inference_mode()
def test_scores_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    model = case.save(tmp_path)
    llm = LLM(tmp_path, num_gpu_blocks_override=40, max_num_batched_tokens=128)
    documents = ["the cat sat", "naïve café " * 5, "x"]
    found = llm.score("the mat", documents)
    pairs = llm.get_tokenizer().encode_pairs([("the mat", text) for text in documents])
    for output, (ids, second) in zip(found, pairs, strict=True):
        assert output.prompt_token_ids == ids
        inputs = {"input_ids": torch.tensor([ids])}
        if case.architecture.startswith("Bert"):
            assert second is not None
            types = [int(place >= second) for place in range(len(ids))]
            inputs["token_type_ids"] = torch.tensor([types])
        (logit,) = model(**inputs).logits[0]
        assert output.outputs.score == pytest.approx(torch.sigmoid(logit).item(), abs=1e-4)
    with pytest.raises(InvalidRequest, match="cross-encoder: use score"):
        llm.embed("x")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an embedding model."""
    folder = tmp_path_factory.mktemp("bert")
    Case("BertModel").save(folder)
    return folder


def changed(folder: Path, tmp_path: Path, **files: dict[str, Any]) -> Path:
    """A copy of a model's folder with other fields in its files."""
    copied = Path(shutil.copytree(folder, tmp_path / "changed"))
    for name, fields in files.items():
        path = copied / f"{name.replace('__', '/')}.json"
        stated = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(stated | fields))
    return copied


def test_a_vector_does_not_depend_on_its_company(bert: Path) -> None:
    llm = LLM(bert)
    prompts = [TokensPrompt(prompt_token_ids=prompt) for prompt in PROMPTS]
    together = llm.embed(prompts)
    for prompt, output in zip(prompts, together, strict=True):
        (alone,) = llm.embed(prompt)
        assert alone.outputs.embedding == pytest.approx(output.outputs.embedding, abs=1e-6)


def test_nothing_is_more_alike_than_the_same() -> None:
    """Rounding would make it so for one vector in seven."""
    vectors = np.random.default_rng(0).standard_normal((50, 128)).astype(np.float32)
    assert all(cosine(one, one) <= 1 and cosine(one, -one) >= -1 for one in vectors)


def test_scores_of_embeddings_are_cosines_with_the_prompts_of_either_side(
    bert: Path, tmp_path: Path
) -> None:
    prompts = {"query": "find: ", "document": "", "default": "say: "}
    stated = {"prompts": prompts, "default_prompt_name": "default"}
    llm = LLM(changed(bert, tmp_path, config_sentence_transformers=stated))
    plain = LLM(bert)
    texts = ["find: the cat", "the mat", "say: the mat"]
    query, document, said = (np.array(o.outputs.embedding) for o in plain.embed(texts))
    (score,) = llm.score("the cat", ["the mat"])
    assert score.outputs.score == pytest.approx(query @ document, abs=1e-6)
    (found,) = llm.embed("the mat")
    assert found.outputs.embedding == pytest.approx(said, abs=1e-6)
    with pytest.raises(InvalidRequest, match="2 queries for 3 documents"):
        llm.score(["a", "b"], ["a", "b", "c"])


def test_dimensions_are_for_models_that_allow_them(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"dimensions is 8, but .* 48 numbers"):
        LLM(bert).embed("x", dimensions=8)
    llm = LLM(changed(bert, tmp_path, config={"matryoshka_dimensions": [8, 48]}))
    (whole,), (cut,) = llm.embed("the cat"), llm.embed("the cat", dimensions=8)
    eight = np.array(whole.outputs.embedding[:8])
    assert cut.outputs.embedding == pytest.approx(eight / np.linalg.norm(eight), abs=1e-6)
    with pytest.raises(InvalidRequest, match="dimensions must be one of 8, 48, got 9"):
        llm.embed("x", dimensions=9)


def test_a_prompt_must_fit(bert: Path) -> None:
    tried: list[dict[str, Any]] = [{}, {"max_num_batched_tokens": 64}]
    for options in tried:
        llm = LLM(bert, **options)
        limit = options.get("max_num_batched_tokens", 160)
        assert llm.info.max_model_len == limit
        llm.embed(TokensPrompt(prompt_token_ids=[3] * limit))
        with pytest.raises(
            InvalidRequest, match=f"{limit + 1} tokens, but max_model_len is {limit}"
        ):
            llm.embed(TokensPrompt(prompt_token_ids=[3] * (limit + 1)))
    with pytest.raises(InvalidRequest, match="generates no text: use embed or score"):
        llm.generate("x")


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"enable_lora": True}, {}, "enable_lora is not for models that pool"),
    ({"quantization": "fp8"}, {}, "quantization is not for encoders"),
    ({"runner": "generate"}, {}, "BertModel generates no text"),
    ({"max_model_len": 200}, {}, "max_model_len 200 exceeds the model's 160"),
    ({"max_model_len": 100, "max_num_batched_tokens": 50}, {}, "max_num_batched_tokens 50"),
    ({}, {"config": {"position_embedding_type": "relative_key"}}, "position_embedding_type"),
    ({}, {"config": {"hidden_act": "mish"}}, "activation 'mish' is not supported"),
    (
        {},
        {"1_Pooling__config": {"pooling_mode": "weightedmean"}},
        "'weightedmean' is not supported",
    ),
    ({}, {"1_Pooling__config": {"include_prompt": False}}, "include_prompt: false"),
    ({}, {"config": {"architectures": ["T5EncoderModel"]}}, "T5EncoderModel has no implementation"),
    (
        {},
        {
            "config": {
                "architectures": ["BertForSequenceClassification"],
                "id2label": {"0": "a", "1": "b"},
            }
        },
        "id2label: the model has 2 labels",
    ),
]


@pytest.mark.parametrize(("options", "files", "words"), REFUSED)
def test_what_is_not_supported_is_refused_by_name(
    options: dict[str, Any], files: dict[str, Any], words: str, bert: Path, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, ModelLoadError), match=words):
        LLM(changed(bert, tmp_path, **files), **options)


def test_a_model_that_generates_pools_if_asked_to(tmp_path: Path) -> None:
    toys.write_llama(tmp_path)
    with pytest.raises(InvalidRequest, match="generates text"):
        LLM(tmp_path).embed("x")
    (found,) = LLM(tmp_path, runner="pooling").embed("the cat")
    assert np.linalg.norm(found.outputs.embedding) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_flood_of_one_tenant_does_not_keep_another_waiting(bert: Path, overlap: bool) -> None:
    llm = LLM(bert, policy="fair_share", max_num_batched_tokens=160, async_scheduling=overlap)
    core = llm._core
    assert isinstance(core, EngineCore)

    def add(name: str, tenant: str, num_tokens: int) -> None:
        message = GenerateRequest(
            request_id=name,
            prompt_token_ids=[3] * num_tokens,
            params=SamplingParams(),
            fair_key=tenant,
            pooling=PoolingParams(),
        )
        core.add_request(message)

    for number in range(40):
        add(f"flood-{number}", "loud", 60)
    ended = [output.request_id for _ in range(4) for output in core.step()]
    for number in range(4):
        add(f"calm-{number}", "calm", 40)
    core.abort(["flood-30", "flood-31"])
    while core.has_unfinished:
        ended += [output.request_id for output in core.step()]
        core.check_integrity()
    assert sorted(ended) == sorted(
        [f"flood-{n}" for n in range(40)] + [f"calm-{n}" for n in range(4)]
    )
    last = max(ended.index(f"calm-{number}") for number in range(4))
    assert last < 24, "a tenant that floods is served before one that has had nothing"
    totals = {tenant.fair_key: tenant.computed_tokens for tenant in core.stats().tenants}
    assert totals == {"loud": 38 * 60, "calm": 160, "others": 0}
