"""Random small checkpoints of models that see, with all that prepares a prompt with pictures."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from engine.architectures import VISION
from tests.engine import toys
from tests.engine.models import families

QWEN_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}"
    "{% if part.type == 'image' or 'image' in part or 'image_url' in part %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN_TOKENS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
SIZES = [(64, 64), (16, 16), (100, 37), (33, 210), (3, 5), (640, 480), (17, 400), (48, 32)]
"""Width and height of pictures for which ``preprocessor`` has each of its rules apply."""


@dataclass(frozen=True)
class Seeing:
    """A family."""

    case: families.Case
    tokens: tuple[str, ...]
    """Added to ``toys.byte_level``."""
    template: str
    preprocessor: dict[str, Any]
    """preprocessor_config.json"""
    processor: str
    """transformers' class for ``AutoProcessor``."""
    pil: str
    """The module and the beginning of the name of transformers' image processor."""
    inputs: tuple[str, ...]
    """What of the image processor's results ``get_image_features`` takes."""

    @property
    def name(self) -> str:
        return self.case.name

    @property
    def module(self) -> str:
        return VISION[self.case.architecture]

    def image_inputs(self, processed: Any) -> dict[str, Any]:
        return {name: processed[name] for name in self.inputs}


def tokenizer(tokens: tuple[str, ...]) -> Tokenizer:
    made = toys.byte_level()
    made.add_special_tokens([AddedToken(token, special=True) for token in tokens])
    return made


def _ids(tokens: tuple[str, ...], **names: str) -> dict[str, int | None]:
    made = tokenizer(tokens)
    return {field: made.token_to_id(token) for field, token in names.items()}


QWEN_IDS = _ids(
    QWEN_TOKENS,
    image_token_id="<|image_pad|>",
    video_token_id="<|video_pad|>",
    vision_start_token_id="<|vision_start|>",
    vision_end_token_id="<|vision_end|>",
)
"""The fields of config.json that name the tokens around a picture."""

QWEN3_VL = Seeing(
    families.Case(
        "qwen3-vl",
        "Qwen3VLForConditionalGeneration",
        {
            "vocab_size": tokenizer(QWEN_TOKENS).get_vocab_size(),
            "max_position_embeddings": 512,
            "num_hidden_layers": 3,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 300.0,
                "mrope_section": [4, 2, 2],
                "mrope_interleaved": True,
            },
        },
        around={
            "vision_config": {
                "depth": 4,
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_heads": 2,
                "patch_size": 8,
                "out_hidden_size": 64,
                "num_position_embeddings": 16,
                "deepstack_visual_indexes": [0, 2],
                "initializer_range": 0.08,
            },
            **QWEN_IDS,
        },
    ),
    QWEN_TOKENS,
    QWEN_TEMPLATE,
    {
        "image_processor_type": "Qwen2VLImageProcessor",
        "size": {"shortest_edge": 1024, "longest_edge": 12288},
        "patch_size": 8,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    },
    "Qwen3VLProcessor",
    "qwen2_vl.Qwen2VL",
    ("pixel_values", "image_grid_thw"),
)

QWEN2_5_VL = Seeing(
    families.Case(
        "qwen2.5-vl",
        "Qwen2_5_VLForConditionalGeneration",
        {
            "vocab_size": tokenizer(QWEN_TOKENS).get_vocab_size(),
            "max_position_embeddings": 512,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 300.0,
                "mrope_section": [4, 2, 2],
            },
        },
        around={
            "vision_config": {
                "depth": 3,
                "hidden_size": 32,
                "intermediate_size": 45,
                "num_heads": 2,
                "patch_size": 8,
                "window_size": 48,
                "fullatt_block_indexes": [1],
                "out_hidden_size": 64,
                "initializer_range": 0.08,
            },
            **QWEN_IDS,
        },
    ),
    QWEN_TOKENS,
    QWEN_TEMPLATE,
    {
        "image_processor_type": "Qwen2VLImageProcessor",
        "min_pixels": 1024,
        "max_pixels": 12288,
        "patch_size": 8,
        "temporal_patch_size": 2,
        "merge_size": 2,
    },
    "Qwen2_5_VLProcessor",
    "qwen2_vl.Qwen2VL",
    ("pixel_values", "image_grid_thw"),
)

QWEN3_5 = Seeing(
    families.Case(
        "qwen3.5",
        "Qwen3_5ForConditionalGeneration",
        {
            **families.HYBRID,
            "linear_num_key_heads": 2,
            "initializer_range": 0.07,
            "vocab_size": tokenizer(QWEN_TOKENS).get_vocab_size(),
            "max_position_embeddings": 512,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 300.0,
                "partial_rotary_factor": 0.75,
                "mrope_section": [2, 2, 2],
                "mrope_interleaved": True,
            },
        },
        around={
            "vision_config": {
                "depth": 2,
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_heads": 2,
                "patch_size": 8,
                "out_hidden_size": 64,
                "num_position_embeddings": 16,
                "initializer_range": 0.08,
            },
            **QWEN_IDS,
        },
    ),
    QWEN_TOKENS,
    QWEN_TEMPLATE,
    QWEN3_VL.preprocessor,
    "Qwen3VLProcessor",
    "qwen2_vl.Qwen2VL",
    ("pixel_values", "image_grid_thw"),
)

MISTRAL_TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'user' %}[INST]"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for block in message.content %}"
    "{% if block.type == 'text' %}{{ block.text }}"
    "{% elif block.type in ['image', 'image_url'] %}[IMG]{% endif %}"
    "{% endfor %}{% endif %}[/INST]"
    "{% else %}{{ message.content }}</s>{% endif %}{% endfor %}"
)
MISTRAL_TOKENS = ("[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]")
MISTRAL3 = Seeing(
    families.Case(
        "mistral3",
        "Mistral3ForConditionalGeneration",
        {
            "model_type": "mistral",
            "vocab_size": tokenizer(MISTRAL_TOKENS).get_vocab_size(),
            "max_position_embeddings": 512,
        },
        around={
            "vision_config": {
                "model_type": "pixtral",
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 3,
                "num_attention_heads": 2,
                "head_dim": 16,
                "image_size": 128,
                "patch_size": 8,
                "initializer_range": 0.08,
            },
            "tie_word_embeddings": False,
            **_ids(MISTRAL_TOKENS, image_token_index="[IMG]"),
        },
    ),
    MISTRAL_TOKENS,
    MISTRAL_TEMPLATE,
    {
        "image_processor_type": "PixtralImageProcessor",
        "size": {"longest_edge": 128},
        "patch_size": {"height": 8, "width": 8},
    },
    "PixtralProcessor",
    "pixtral.Pixtral",
    ("pixel_values", "image_sizes"),
)

GEMMA_TEMPLATE = (
    "{% for message in messages %}<start_of_turn>"
    "{{ 'model' if message.role == 'assistant' else message.role }}\n"
    "{% if message.content is string %}{{ message.content | trim }}{% else %}"
    "{% for item in message.content %}"
    "{% if item.type == 'image' or item.type == 'image_url' %}<start_of_image>"
    "{% elif item.type == 'text' %}{{ item.text | trim }}{% endif %}"
    "{% endfor %}{% endif %}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
GEMMA_TOKENS = (
    "<start_of_turn>",
    "<end_of_turn>",
    "<start_of_image>",
    "<end_of_image>",
    "<image_soft_token>",
)
GEMMA3 = Seeing(
    families.Case(
        "gemma3",
        "Gemma3ForConditionalGeneration",
        {
            "vocab_size": tokenizer(GEMMA_TOKENS).get_vocab_size(),
            "max_position_embeddings": 512,
            "sliding_window": 9,
            "sliding_window_pattern": 2,
        },
        around={
            "vision_config": {
                "model_type": "siglip_vision_model",
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 3,
                "num_attention_heads": 2,
                "image_size": 64,
                "patch_size": 8,
                "vision_use_head": False,
            },
            "mm_tokens_per_image": 16,
            **_ids(
                GEMMA_TOKENS,
                boi_token_index="<start_of_image>",
                eoi_token_index="<end_of_image>",
                image_token_index="<image_soft_token>",
            ),
        },
    ),
    GEMMA_TOKENS,
    GEMMA_TEMPLATE,
    {
        "image_processor_type": "Gemma3ImageProcessor",
        "size": {"height": 64, "width": 64},
        "do_pan_and_scan": None,
    },
    "Gemma3Processor",
    "gemma3.Gemma3",
    ("pixel_values",),
)

FAMILIES = [QWEN3_VL, QWEN2_5_VL, QWEN3_5, MISTRAL3, GEMMA3]


def write(seeing: Seeing, folder: Path, **changes: Any) -> Path:
    """A whole checkpoint. changes: fields of the text model's config."""
    families.write(seeing.case, folder, **changes)
    return write_processor(seeing, folder)


def write_processor(seeing: Seeing, folder: Path, **changes: Any) -> Path:
    """What surrounds the weights. changes: fields of preprocessor_config.json."""
    config = folder / "config.json"
    files: dict[str, object] = {}
    if not config.exists():
        files["config"] = {
            "architectures": [seeing.case.architecture],
            **(seeing.case.around or {}),
        }
    return toys.write_model_folder(
        folder,
        tokenizer=tokenizer(seeing.tokens),
        tokenizer_config={
            "tokenizer_class": "PreTrainedTokenizerFast",
            "processor_class": seeing.processor,
            "chat_template": seeing.template,
            "eos_token": "</s>",
        },
        preprocessor_config={**seeing.preprocessor, **changes},
        **files,
    )


def image_processor(seeing: Seeing, folder: Path) -> Any:
    """transformers' own, which uses Pillow."""
    module, name = seeing.pil.split(".")
    path = f"transformers.models.{module}.image_processing_pil_{module}"
    kind = getattr(importlib.import_module(path), f"{name}ImageProcessorPil")
    made = kind.from_pretrained(folder)
    if seeing.name == "mistral3":  # PixtralProcessor tells its image processor so.
        made.patch_size = {"height": 16, "width": 16}
    return made
