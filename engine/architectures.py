"""Which architectures have an implementation of their own. Imports nothing heavy: the gateway, too,
prints this table.

To add one: write its file in ``engine/models``, add its line here.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import Literal

import msgspec

QuantizationMethod = Literal["fp8", "awq", "gptq", "compressed-tensors", "modelopt", "mxfp4"]
"""Weight formats that some native family loads, by vLLM's names."""


class Family(msgspec.Struct, frozen=True):
    """One file of ``engine/models``."""

    module: str
    """The module's name; it defines ``ConfigFile`` and ``ForCausalLM``."""
    name: str
    """The family's name for people."""
    quantizations: tuple[QuantizationMethod, ...] = (
        "fp8",
        "awq",
        "gptq",
        "compressed-tensors",
        "modelopt",
    )
    """The formats of its quantized checkpoints."""


NATIVE = {
    "LlamaForCausalLM": Family("llama", "Llama 2, 3, 3.x"),
    "MistralForCausalLM": Family("mistral", "Mistral"),
    "Ministral3ForCausalLM": Family("ministral3", "Ministral 3, Mistral Small 3"),
    "Mistral3ForConditionalGeneration": Family("mistral3", "Ministral 3, Mistral Small 3"),
    "Qwen2ForCausalLM": Family("qwen2", "Qwen 2, 2.5"),
    "Qwen3ForCausalLM": Family("qwen3", "Qwen 3"),
    "Qwen2_5_VLForConditionalGeneration": Family("qwen2_5_vl", "Qwen2.5-VL"),
    "Qwen3VLForConditionalGeneration": Family("qwen3_vl", "Qwen3-VL"),
    "GraniteForCausalLM": Family("granite", "Granite 3"),
    "GraniteMoeHybridForCausalLM": Family("granite_hybrid", "Granite 4 hybrid (dense)"),
    "Phi3ForCausalLM": Family("phi3", "Phi-3, Phi-4"),
    "Gemma2ForCausalLM": Family("gemma2", "Gemma 2"),
    "Gemma3ForCausalLM": Family("gemma3", "Gemma 3 (text)"),
    "Gemma3ForConditionalGeneration": Family("gemma3", "Gemma 3 (text)"),
    "MixtralForCausalLM": Family("mixtral", "Mixtral"),
    "Qwen3MoeForCausalLM": Family("qwen3_moe", "Qwen 3 MoE"),
    "Qwen3NextForCausalLM": Family("qwen3_next", "Qwen3-Next"),
    "Qwen3_5ForCausalLM": Family("qwen3_5", "Qwen 3.5, 3.6"),
    "Qwen3_5ForConditionalGeneration": Family("qwen3_5", "Qwen 3.5, 3.6"),
    "Qwen3_5MoeForCausalLM": Family("qwen3_5_moe", "Qwen 3.5, 3.6 MoE"),
    "Qwen3_5MoeForConditionalGeneration": Family("qwen3_5_moe", "Qwen 3.5, 3.6 MoE"),
    "Lfm2ForCausalLM": Family("lfm2", "LFM2"),
    "DeepseekV2ForCausalLM": Family("deepseek_v2", "DeepSeek V2"),
    "DeepseekV3ForCausalLM": Family("deepseek_v3", "DeepSeek V3, R1"),
    "Glm4MoeForCausalLM": Family("glm4_moe", "GLM-4.5"),
    "GptOssForCausalLM": Family("gpt_oss", "gpt-oss", ("mxfp4",)),
}
"""Keyed by the name in a checkpoint's ``architectures``."""

VISION = {
    "Qwen3VLForConditionalGeneration": "qwen3_vl",
    "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl",
    "Qwen3_5ForConditionalGeneration": "qwen3_5",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5",
    "Mistral3ForConditionalGeneration": "pixtral",
    "Gemma3ForConditionalGeneration": "gemma3",
}
"""Models that see, by the name in a checkpoint's ``architectures``: the module of ``engine.images``
that prepares their pictures, and that of ``engine.models.vision`` which encodes them."""

ENCODERS = {
    "BertModel": "bert",
    "BertForMaskedLM": "bert",
    "BertForSequenceClassification": "bert",
    "RobertaModel": "bert",
    "RobertaForMaskedLM": "bert",
    "RobertaForSequenceClassification": "bert",
    "XLMRobertaModel": "bert",
    "XLMRobertaForMaskedLM": "bert",
    "XLMRobertaForSequenceClassification": "bert",
    "ModernBertModel": "modernbert",
    "ModernBertForMaskedLM": "modernbert",
    "ModernBertForSequenceClassification": "modernbert",
}
"""Models of attention in both directions, which make embeddings or scores, by the name in a
checkpoint's ``architectures``: the module that implements each."""


def decoder_of(architecture: str) -> str | None:
    """The native decoder that an architecture is made of: ``Qwen3ForCausalLM`` of itself, of
    ``Qwen3Model`` (embeddings) and of ``Qwen3ForSequenceClassification`` (scores). None if there is
    none."""
    for suffix in ("ForCausalLM", "Model", "ForSequenceClassification"):
        name = architecture.removesuffix(suffix) + "ForCausalLM"
        if architecture.endswith(suffix) and name in NATIVE:
            return name
    return architecture if architecture in NATIVE else None


def nearest(architecture: str) -> str:
    """The native decoder whose name is most like that of an architecture which is none."""

    def likeness(name: str) -> float:
        matcher = SequenceMatcher(None, _bare(architecture), _bare(name))
        return matcher.ratio()

    return max(NATIVE, key=likeness)


def _bare(architecture: str) -> str:
    for suffix in ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel"):
        architecture = architecture.removesuffix(suffix)
    return architecture


FALLBACK_QUANTIZATIONS: tuple[QuantizationMethod, ...] = ("fp8",)
"""Those available for models that run through transformers: weights are quantized while loading."""

FALLBACK_TESTED = (
    "GPT2LMHeadModel",
    "OPTForCausalLM",
    "GPTNeoXForCausalLM",
    "GPTBigCodeForCausalLM",
    "Starcoder2ForCausalLM",
    "PhiForCausalLM",
    "GemmaForCausalLM",
    "OlmoForCausalLM",
    "Olmo2ForCausalLM",
    "OlmoeForCausalLM",
    "CohereForCausalLM",
    "Cohere2ForCausalLM",
    "Glm4ForCausalLM",
    "SmolLM3ForCausalLM",
    "NemotronForCausalLM",
    "Exaone4ForCausalLM",
)
"""Served by transformers' own code on our cache, and tested so; on a GPU their decode steps run in
CUDA graphs where the host need not wait for their results. Others may run as well."""
