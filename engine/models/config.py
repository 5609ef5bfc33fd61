"""Reading a checkpoint's config.json, refusing by name what the code does not implement.

``ConfigFile`` reads what Llama-like models have in common. A family's own subclass adds its fields,
with transformers' defaults, and says in ``adapt`` what they change.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
import torch

from engine.errors import ModelLoadError
from engine.layers.mlp import ACTIVATIONS
from engine.layers.moe import RouterConfig
from engine.layers.rope import SCALINGS, RopeConfig
from engine.models.base import ModelConfig

Count = Annotated[int, msgspec.Meta(ge=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_ORIGINAL_LENGTH = "original_max_position_embeddings"
# The parameters that each scaling requires.
_SCALING_PARAMETERS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", _ORIGINAL_LENGTH),
    "yarn": (_ORIGINAL_LENGTH,),
    "longrope": ("short_factor", "long_factor", _ORIGINAL_LENGTH),
}
assert set(_SCALING_PARAMETERS) == set(SCALINGS)

# Fields that change what some models compute, with the values that change nothing. A family that
# does not know such a field would compute something else than the checkpoint means.
_MATTERS: Mapping[str, tuple[object, ...]] = {
    "activation_function": ("silu",),
    "alibi": (False,),
    "attention_chunk_size": (),
    "attention_multiplier": (),
    "attention_out_bias": (False,),
    "attn_logit_softcapping": (),
    "clip_qkv": (),
    "embedding_multiplier": (1,),
    "final_logit_softcapping": (),
    "hidden_activation": ("silu",),
    "kv_lora_rank": (),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "max_window_layers": (),
    "mup_width_multiplier": (1,),
    "n_routed_experts": (0,),
    "no_rope_layers": ([],),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "parallel_attn": (False,),
    "partial_rotary_factor": (1,),
    "qk_layernorm": (False,),
    "query_pre_attn_scalar": (),
    "residual_multiplier": (1,),
    "rope_interleaved": (False,),
    "rope_local_base_freq": (),
    "sliding_window": (0,),
    "use_bidirectional_attention": (False,),
    "use_parallel_residual": (False,),
    "use_qk_norm": (False,),
    "use_sliding_window": (False,),
}


class ConfigFile(msgspec.Struct, kw_only=True):
    """The fields of config.json in Llama-like models; defaults as in transformers."""

    rope_scalings: ClassVar[tuple[str, ...]] = SCALINGS

    architectures: list[str]
    vocab_size: Count
    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    hidden_act: str = "silu"
    rms_norm_eps: Positive = 1e-6
    max_position_embeddings: Count = 2048
    rope_theta: Positive = 10000.0
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: float = 1.0
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    dtype: str | None = None
    torch_dtype: str | None = None
    eos_token_id: int | list[int] | None = None

    def adapt(self, config: ModelConfig) -> ModelConfig:
        """``config`` with the changes of this family's fields. ``ValueError`` names a field that is
        wrong or not implemented."""
        return config

    def rope(self) -> RopeConfig:
        """The rotary embedding, from either spelling: ``rope_parameters`` (transformers 5), or
        ``rope_scaling`` with ``rope_theta``."""
        return self.read_rope(dict(self.rope_parameters or self.rope_scaling or {}))

    def read_rope(
        self, parameters: dict[str, Any], *, default_theta: float | None = None
    ) -> RopeConfig:
        theta = parameters.pop("rope_theta", default_theta or self.rope_theta)
        kinds = [parameters.pop(name, None) for name in ("rope_type", "type")]
        scaling = kinds[0] or kinds[1] or "default"
        if scaling == "su":  # longrope's first name
            scaling = "longrope"
        if scaling not in self.rope_scalings:
            raise ValueError(
                f"rope scaling {scaling!r} is not supported, only {', '.join(self.rope_scalings)}"
            )
        if scaling in ("llama3", "yarn", "longrope"):
            parameters.setdefault(_ORIGINAL_LENGTH, self.max_position_embeddings)
        for name in _SCALING_PARAMETERS[scaling]:
            what = "list" if name in ("short_factor", "long_factor") else "number"
            if not isinstance(parameters.get(name), list if what == "list" else int | float):
                raise ValueError(f"rope scaling {scaling!r} needs the {what} {name!r}")
        fraction = parameters.pop("partial_rotary_factor", self.partial_rotary_factor)
        factor = parameters.get("factor")
        for name, value in (("rope_theta", theta), ("factor", 1.0 if factor is None else factor)):
            if not (isinstance(value, int | float) and value > 0):
                raise ValueError(f"{name}: must be a number above 0, got {value!r}")
        return RopeConfig(
            theta=float(theta),
            scaling=scaling,
            parameters=parameters,
            rotary_fraction=float(fraction),
            max_position_embeddings=self.max_position_embeddings,
        )

    def windows(
        self, sliding_window: int | None, layer_types: list[str] | None
    ) -> tuple[int | None, ...]:
        """The window of each layer, by ``layer_types``; without those every layer has the
        window."""
        if sliding_window is not None and sliding_window < 1:
            raise ValueError(f"sliding_window: must be at least 1, got {sliding_window}")
        if layer_types is None:
            layer_types = ["sliding_attention"] * self.num_hidden_layers
        self._check_layer_types(layer_types, ("full_attention", "sliding_attention"))
        return tuple(sliding_window if k == "sliding_attention" else None for k in layer_types)

    def recurrent_layers(
        self, layer_types: list[str], recurrent: str, attention: str = "full_attention"
    ) -> tuple[int, ...]:
        """The layers of the kind ``recurrent``; all others are ``attention``."""
        self._check_layer_types(layer_types, (recurrent, attention))
        if attention not in layer_types:
            raise ValueError(f"layer_types: a model without {attention!r} is not supported")
        return tuple(i for i, kind in enumerate(layer_types) if kind == recurrent)

    def _check_layer_types(self, layer_types: list[str], known: tuple[str, ...]) -> None:
        if len(layer_types) != self.num_hidden_layers:
            raise ValueError(
                f"layer_types names {len(layer_types)} layers, num_hidden_layers is "
                f"{self.num_hidden_layers}"
            )
        for kind in layer_types:
            if kind not in known:
                raise ValueError(f"layer_types: {kind!r} is not supported")


class _Architecture(msgspec.Struct):
    architectures: list[str] | None = None


class _GenerationConfigFile(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


T = TypeVar("T")


def read_architecture(model_dir: Path) -> str:
    """The checkpoint's architecture: the first of ``architectures``. Raises ``ModelLoadError``."""
    if not model_dir.is_dir():
        raise ModelLoadError(f"model folder {str(model_dir)!r} does not exist: check the path")
    path = model_dir / "config.json"
    architectures = _read(path, _Architecture).architectures
    if not architectures:
        raise ModelLoadError(f"{path}: architectures: is missing or empty")
    return architectures[0]


def read_config(model_dir: Path, kind: type[ConfigFile]) -> ModelConfig:
    """Raises ``ModelLoadError`` naming the file, the field and the mend."""
    path = model_dir / "config.json"
    fields = _read(path, dict[str, Any])
    # For multimodal models, the config of the text model.
    fields |= fields.pop("text_config", None) or {}
    try:
        file = msgspec.convert(fields, kind)
        _refuse_unsupported(file, fields)
        config = file.adapt(_common(file, eos_token_ids(model_dir, file.eos_token_id)))
        if config.moe is not None:
            _check_experts(config.moe.router, config.activation)
        return config
    except ValueError as error:  # msgspec's are such, too
        raise ModelLoadError(f"{path}: {error}") from error


def _common(file: ConfigFile, eos: frozenset[int]) -> ModelConfig:
    heads = file.num_attention_heads
    kv_heads = file.num_key_value_heads or heads
    if heads % kv_heads:
        raise ValueError(
            f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
        )
    head_dim, rope = file.head_dim or file.hidden_size // heads, file.rope()
    _check_rotation(rope, head_dim)
    return ModelConfig(
        architecture=file.architectures[0],
        vocab_size=file.vocab_size,
        hidden_size=file.hidden_size,
        intermediate_size=file.intermediate_size,
        num_layers=file.num_hidden_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=file.rms_norm_eps,
        max_position_embeddings=file.max_position_embeddings,
        rope=rope,
        tie_word_embeddings=file.tie_word_embeddings,
        attention_bias=file.attention_bias,
        mlp_bias=file.mlp_bias,
        dtype=DTYPES[file.dtype or file.torch_dtype or "float32"],
        eos_token_ids=eos,
        activation=file.hidden_act,
    )


def _check_experts(router: RouterConfig, activation: str) -> None:
    if activation != "silu":
        raise ValueError(f"hidden_act: experts have 'silu' only, not {activation!r}")
    if router.top_k > router.num_experts:
        raise ValueError(f"num_experts_per_tok: {router.top_k} of {router.num_experts} experts")
    if router.num_groups == 1:
        return
    if router.num_experts % router.num_groups:
        raise ValueError(f"n_group: {router.num_groups} groups of {router.num_experts} experts")
    if router.has_bias and router.num_groups == router.num_experts:
        raise ValueError(f"n_group: {router.num_groups}, but the two best of a group count")
    if router.top_k_groups > router.num_groups:
        raise ValueError(f"topk_group: {router.top_k_groups} of {router.num_groups} groups")
    within = router.num_experts // router.num_groups * router.top_k_groups
    if router.top_k > within:
        raise ValueError(
            f"num_experts_per_tok: {router.top_k}, but topk_group leaves {within} experts"
        )


def _check_rotation(rope: RopeConfig, head_dim: int) -> None:
    rotary_dim = int(head_dim * rope.rotary_fraction)
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise ValueError(
            f"partial_rotary_factor: {rotary_dim} of {head_dim} dimensions cannot turn"
        )
    for name in ("short_factor", "long_factor") if rope.scaling == "longrope" else ():
        given = len(rope.parameters[name])
        if given != rotary_dim // 2:
            raise ValueError(f"rope scaling: {name} has {given} numbers, not {rotary_dim // 2}")


def _read(path: Path, kind: type[T]) -> T:
    """A JSON file as ``kind``. Raises ``ModelLoadError`` naming the file and what is wrong."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise ModelLoadError(
            f"cannot read {path} ({error.strerror}): the model must be a folder in Hugging Face "
            "layout"
        ) from error
    except msgspec.DecodeError as error:
        raise ModelLoadError(f"{path}: {error}") from error


def _refuse_unsupported(file: ConfigFile, fields: dict[str, Any]) -> None:
    dtype = file.dtype or file.torch_dtype or "float32"
    if dtype not in DTYPES:
        raise ValueError(f"dtype: not supported: {dtype!r}, only {', '.join(DTYPES)}")
    if file.hidden_act not in ACTIVATIONS:
        known = ", ".join(map(repr, ACTIVATIONS))
        raise ValueError(f"hidden_act: not supported: {file.hidden_act!r}, only {known}")
    known_fields = {field.encode_name for field in msgspec.structs.fields(file)}
    for name, value in fields.items():
        harmless = _MATTERS.get(name)
        if name in known_fields or harmless is None or value is None or value in harmless:
            continue
        shown = textwrap.shorten(repr(value), 80)
        raise ValueError(f"{name}: not supported by {file.architectures[0]}: {shown}")


def eos_token_ids(model_dir: Path, from_config: int | list[int] | None) -> frozenset[int]:
    """The ids that end a text; generation_config.json takes precedence over config.json."""
    path = model_dir / "generation_config.json"
    ids = _read(path, _GenerationConfigFile).eos_token_id if path.exists() else None
    if ids is None:
        ids = from_config
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)
