"""``adapter_config.json`` of PEFT: what is read, and what is refused by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import AdapterLoadError

FILE_NAME = "adapter_config.json"

_MUST_BE_UNSET = (
    "use_dora",
    "use_qalora",
    "lora_bias",
    "fan_in_fan_out",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "layer_replication",
    "megatron_config",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "arrow_config",
)
_CHANGES_BASE = ("pissa", "olora", "corda")
"""Initialisations that subtract the adapter's initial value from the base weights."""


class AdapterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What adapter_config.json says, in PEFT's format."""

    r: int
    lora_alpha: float
    target_modules: list[str] | str
    """Suffixes of module names; a single string is a regular expression, or ``all-linear``."""
    use_rslora: bool = False
    """Divide by the root of the rank (arXiv 2312.03732)."""
    base_model_name_or_path: str | None = None

    def __post_init__(self) -> None:
        if self.r < 1:
            raise ValueError(f"r must be at least 1, got {self.r}")
        if not math.isfinite(self.lora_alpha):
            raise ValueError(f"lora_alpha must be a finite number, got {self.lora_alpha}")

    @property
    def scaling(self) -> float:
        """Factor on the product of the two matrices."""
        return self.lora_alpha / (math.sqrt(self.r) if self.use_rslora else self.r)


def read_config(folder: Path) -> AdapterConfig:
    """``AdapterLoadError`` names the field that is missing, wrong or not supported."""
    path = folder / FILE_NAME
    try:
        fields: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        config = msgspec.convert(fields, AdapterConfig)
    except OSError as error:
        raise AdapterLoadError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise AdapterLoadError(f"{path}: {error}") from error
    _refuse_unsupported(path, fields)
    return config


def _refuse_unsupported(path: Path, fields: dict[str, Any]) -> None:
    if fields.get("peft_type", "LORA") != "LORA":
        raise AdapterLoadError(f"{path}: peft_type {fields['peft_type']!r} is not LORA")
    if fields.get("bias", "none") != "none":
        raise AdapterLoadError(f"{path}: bias: not supported: {fields['bias']!r}, only 'none'")
    for name in _MUST_BE_UNSET:
        if fields.get(name):
            raise AdapterLoadError(f"{path}: {name}: not supported: {fields[name]!r}")
    init = fields.get("init_lora_weights")
    if isinstance(init, str) and init.startswith(_CHANGES_BASE):
        raise AdapterLoadError(
            f"{path}: init_lora_weights {init!r} has changed the base's weights: save the adapter "
            "with path_initial_model_for_weight_conversion"
        )
