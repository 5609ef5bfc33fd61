"""Reading a checkpoint's config.json, refusing by name what the code does not implement."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch

from engine.errors import ModelLoadError
from engine.layers.rope import SCALINGS, RopeConfig
from engine.models.base import ModelConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# What each scaling cannot do without.
_SCALING_PARAMETERS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}
assert set(_SCALING_PARAMETERS) == set(SCALINGS)


class _ConfigFile(msgspec.Struct, kw_only=True):
    """The fields of config.json as Llama-like models write them; defaults as in transformers."""

    architectures: list[str]
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: float = 1.0
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    dtype: str | None = None
    torch_dtype: str | None = None
    eos_token_id: int | list[int] | None = None
    quantization_config: dict[str, Any] | None = None


class _GenerationConfigFile(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


_File = TypeVar("_File", _ConfigFile, _GenerationConfigFile)


def read_config(model_dir: Path) -> ModelConfig:
    """Raises ``ModelLoadError`` naming the file, the field and the mend."""
    if not model_dir.is_dir():
        raise ModelLoadError(f"model folder {str(model_dir)!r} does not exist: check the path")
    path = model_dir / "config.json"
    file = _read(path, _ConfigFile)
    _refuse_unsupported(path, file)
    heads = file.num_attention_heads
    head_dim = file.head_dim or file.hidden_size // heads
    kv_heads = file.num_key_value_heads or heads
    if heads % kv_heads:
        raise ModelLoadError(
            f"{path}: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
        )
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
        rope=_rope(path, file),
        tie_word_embeddings=file.tie_word_embeddings,
        attention_bias=file.attention_bias,
        mlp_bias=file.mlp_bias,
        dtype=DTYPES[file.dtype or file.torch_dtype or "float32"],
        eos_token_ids=_eos_token_ids(model_dir, file),
    )


def _read(path: Path, kind: type[_File]) -> _File:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise ModelLoadError(
            f"cannot read {path} ({error.strerror}): the model must be a folder in Hugging Face "
            "layout"
        ) from error
    except msgspec.DecodeError as error:
        raise ModelLoadError(f"{path}: {error}") from error


def _refuse_unsupported(path: Path, file: _ConfigFile) -> None:
    dtype = file.dtype or file.torch_dtype or "float32"
    refusals = {
        "architectures": None if file.architectures else "is empty",
        "hidden_act": None if file.hidden_act == "silu" else f"{file.hidden_act!r}, only 'silu'",
        "partial_rotary_factor": None if file.partial_rotary_factor == 1 else "other than 1",
        "quantization_config": None if file.quantization_config is None else "quantized weights",
        "dtype": None if dtype in DTYPES else f"{dtype!r}, only {', '.join(DTYPES)}",
    }
    for name, refusal in refusals.items():
        if refusal is not None:
            raise ModelLoadError(f"{path}: {name}: not supported: {refusal}")


def _rope(path: Path, file: _ConfigFile) -> RopeConfig:
    """Both spellings: ``rope_parameters`` (transformers 5), ``rope_scaling`` beside rope_theta."""
    parameters = dict(file.rope_parameters or file.rope_scaling or {})
    theta = parameters.pop("rope_theta", file.rope_theta)
    scaling = parameters.pop("rope_type", None) or parameters.pop("type", None) or "default"
    if scaling not in SCALINGS:
        raise ModelLoadError(
            f"{path}: rope scaling {scaling!r} is not supported, only {', '.join(SCALINGS)}"
        )
    if parameters.get("partial_rotary_factor", 1) != 1:
        raise ModelLoadError(f"{path}: partial_rotary_factor: not supported: other than 1")
    for name in _SCALING_PARAMETERS[scaling]:
        if not isinstance(parameters.get(name), int | float):
            raise ModelLoadError(f"{path}: rope scaling {scaling!r} needs the number {name!r}")
    return RopeConfig(theta=float(theta), scaling=scaling, parameters=parameters)


def _eos_token_ids(model_dir: Path, file: _ConfigFile) -> frozenset[int]:
    path = model_dir / "generation_config.json"
    ids = _read(path, _GenerationConfigFile).eos_token_id if path.exists() else None
    if ids is None:
        ids = file.eos_token_id
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)
