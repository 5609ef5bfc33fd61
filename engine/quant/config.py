"""From config.json's quantization_config and the option ``quantization`` to what reads the weights.

What is not implemented is refused by name.
"""

from __future__ import annotations

import fnmatch
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
from safetensors import SafetensorError, safe_open

from engine.architectures import QuantizationMethod
from engine.errors import ConfigError, ModelLoadError
from engine.quant.awq import Awq
from engine.quant.base import CheckpointQuantization, Quantization
from engine.quant.compressed_tensors import PackQuantized
from engine.quant.fp8 import Fp8
from engine.quant.fp8_blocks import Fp8Blocks
from engine.quant.gptq import Gptq
from engine.quant.mixed import ALL_LINEAR, Group, Mixed
from engine.quant.mxfp4 import Mxfp4


class _Fp8Config(msgspec.Struct):
    activation_scheme: Literal["dynamic", "static"] = "dynamic"
    weight_block_size: list[int] | None = None
    ignored_layers: list[str] | None = None
    modules_to_not_convert: list[str] | None = None
    lm_head: bool = False
    """The head is quantized, too: no config says so, but a scale among the tensors."""

    def quantization(self) -> Quantization:
        ignored = self.ignored_layers or self.modules_to_not_convert or []
        unquantized = ignored if self.lm_head else ("lm_head", *ignored)
        if self.weight_block_size is None:
            return Fp8(per_tensor=True, unquantized=unquantized)
        _require("activation_scheme, with weight_block_size", self.activation_scheme, "dynamic")
        block = _block("weight_block_size", self.weight_block_size)
        return Fp8Blocks(block, unquantized=unquantized)


class _ModelOptConfig(msgspec.Struct):
    """NVIDIA's Model Optimizer: ``quantization_config``, or in older checkpoints the table
    ``quantization`` of hf_quant_config.json. A head that is not excluded is quantized."""

    quant_algo: str
    ignore: list[str] | None = None
    exclude_modules: list[str] | None = None

    def quantization(self) -> Quantization:
        _require("quant_algo", self.quant_algo.upper(), "FP8", "FP8_PER_CHANNEL_PER_TOKEN")
        wildcards = self.ignore or self.exclude_modules or ()
        return Fp8(
            per_tensor=self.quant_algo.upper() == "FP8",
            unquantized=[
                f"re:{fnmatch.translate(name)}" if "*" in name else name for name in wildcards
            ],
        )


class _AwqConfig(msgspec.Struct):
    bits: int
    group_size: int
    zero_point: bool = True
    version: str = "gemm"
    modules_to_not_convert: list[str] | None = None

    def quantization(self) -> Quantization:
        _require("bits", self.bits, 4)
        _require("zero_point", self.zero_point, True)
        _require("version", self.version.lower(), "gemm")
        return Awq(self.group_size, unquantized=self.modules_to_not_convert or ())


class _GptqConfig(msgspec.Struct):
    bits: int
    group_size: int
    checkpoint_format: Literal["gptq", "gptq_v2"] = "gptq"
    lm_head: bool = False
    dynamic: dict[str, Any] | None = None

    def quantization(self) -> Quantization:
        _require("bits", self.bits, 4)
        _require("dynamic", self.dynamic or None, None)
        return Gptq(
            self.group_size,
            zero_offset=int(self.checkpoint_format == "gptq"),
            unquantized=() if self.lm_head else ("lm_head",),
        )


class _Mxfp4Config(msgspec.Struct):
    """gpt-oss's own format. What is not converted is all but the experts, whose form is known."""

    modules_to_not_convert: list[str] | None = None

    def quantization(self) -> CheckpointQuantization:
        return Mxfp4()


class _Numbers(msgspec.Struct):
    """How compressed-tensors describes weights or activations."""

    num_bits: int
    type: Literal["int", "float"] = "int"
    symmetric: bool = True
    strategy: str | None = None
    group_size: int | None = None
    block_structure: list[int] | None = None
    actorder: str | bool | None = None


class _Group(msgspec.Struct):
    targets: list[str]
    weights: _Numbers
    input_activations: _Numbers | None = None
    output_activations: _Numbers | None = None


class _CompressedTensorsConfig(msgspec.Struct):
    config_groups: dict[str, _Group]
    ignore: list[str] = []
    sparsity_config: dict[str, Any] | None = None
    transform_config: dict[str, Any] | None = None

    def quantization(self) -> CheckpointQuantization:
        _require("sparsity_config", self.sparsity_config or None, None)
        _require("transform_config", self.transform_config or None, None)
        if not self.config_groups:
            raise ValueError("config_groups: empty")
        groups = [Group(group.targets, self._of(group)) for group in self.config_groups.values()]
        if len(groups) == 1 and groups[0].targets == [ALL_LINEAR]:
            return groups[0].quantization
        return Mixed(groups)

    def _of(self, group: _Group) -> Quantization:
        for target in group.targets:
            if target != ALL_LINEAR and target[:1].isupper():  # a class, like "Linear"
                raise ValueError(
                    f"targets: not supported: {target!r}, only {ALL_LINEAR!r} and names"
                )
        _require("output_activations", group.output_activations, None)
        if group.weights.type == "float":
            return self._fp8(group)
        return self._int4(group)

    def _fp8(self, group: _Group) -> Quantization:
        weights, activations = group.weights, group.input_activations
        _require("weights: num_bits", weights.num_bits, 8)
        _require("weights: symmetric", weights.symmetric, True)
        _require("weights: strategy", weights.strategy, "tensor", "channel", "block")
        if activations is not None:
            _require("input_activations: type", activations.type, "float")
            _require("input_activations: num_bits", activations.num_bits, 8)
            strategies = ("group",) if weights.strategy == "block" else ("tensor", "token")
            _require("input_activations: strategy", activations.strategy, *strategies, None)
        if weights.strategy == "block":
            block = _block("weights: block_structure", weights.block_structure)
            return Fp8Blocks(block, scale_name="weight_scale", unquantized=self.ignore)
        return Fp8(
            per_tensor=weights.strategy == "tensor",
            activations=activations is not None,
            unquantized=self.ignore,
        )

    def _int4(self, group: _Group) -> Quantization:
        weights = group.weights
        _require("weights: num_bits", weights.num_bits, 4)
        _require("weights: strategy", weights.strategy, "group", "channel")
        _require("weights: actorder", weights.actorder, None, False, "weight", "static", "group")
        _require("input_activations", group.input_activations, None)
        return PackQuantized(
            weights.group_size or -1,
            symmetric=weights.symmetric,
            ordered=weights.actorder == "group",
            unquantized=self.ignore,
        )


class _ModelOptFile(msgspec.Struct):
    """hf_quant_config.json"""

    quantization: dict[str, Any]


_Reader = (
    type[_Fp8Config]
    | type[_AwqConfig]
    | type[_GptqConfig]
    | type[_CompressedTensorsConfig]
    | type[_ModelOptConfig]
    | type[_Mxfp4Config]
)
_READERS: dict[str, _Reader] = {
    "fp8": _Fp8Config,
    "awq": _AwqConfig,
    "gptq": _GptqConfig,
    "compressed-tensors": _CompressedTensorsConfig,
    "modelopt": _ModelOptConfig,
    "mxfp4": _Mxfp4Config,
}


def read_quantization(
    model_dir: Path, method: QuantizationMethod | None
) -> CheckpointQuantization | None:
    """None: nothing is quantized. ``ConfigError`` where option and checkpoint do not agree,
    ``ModelLoadError`` names a field that is wrong or not supported."""
    where, found = _stored(model_dir)
    if found is None:
        if method not in (None, "fp8"):
            raise ConfigError(
                f"quantization is {method!r}, but {model_dir / 'config.json'} has no "
                "quantization_config: only 'fp8' can quantize while loading"
            )
        return None if method is None else Fp8(online=True, unquantized=("lm_head",))
    stored = found.get("quant_method") if isinstance(found, dict) else None
    reader = _READERS.get(str(stored))
    if reader is None:
        raise ModelLoadError(
            f"{where}: quant_method: not supported: {stored!r}, only " + ", ".join(_READERS)
        )
    if method not in (None, stored):
        raise ConfigError(
            f"quantization is {method!r}, but the checkpoint's quantization_config says {stored!r}"
        )
    if reader is _Fp8Config and _has_quantized_head(model_dir):
        found = {**found, "lm_head": True}
    try:
        return msgspec.convert(found, reader).quantization()
    except ValueError as error:  # msgspec's are such, too
        raise ModelLoadError(f"{where}: {error}") from error


def _stored(model_dir: Path) -> tuple[str, Any]:
    """Where a checkpoint describes its quantization, and how; None: nowhere."""
    path = model_dir / "config.json"
    fields: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    found = fields.get("quantization_config") or (fields.get("text_config") or {}).get(
        "quantization_config"
    )
    beside = model_dir / "hf_quant_config.json"
    if found is not None or not beside.is_file():
        return f"{path}: quantization_config", found
    try:
        table = msgspec.json.decode(beside.read_bytes(), type=_ModelOptFile).quantization
    except (OSError, msgspec.MsgspecError) as error:
        raise ModelLoadError(f"{beside}: {error}") from error
    return f"{beside}: quantization", {"quant_method": "modelopt", **table}


def _has_quantized_head(model_dir: Path) -> bool:
    for path in model_dir.glob("*.safetensors"):
        with suppress(OSError, SafetensorError), safe_open(path, framework="pt") as file:
            if any(name.startswith("lm_head.weight_scale") for name in file.keys()):  # noqa: SIM118
                return True
    return False  # or damaged files, which are named where they are loaded


def _block(field: str, value: list[int] | None) -> tuple[int, int]:
    """Rows and columns."""
    match value:
        case [rows, columns] if rows > 0 and columns > 0:
            return rows, columns
    raise ValueError(f"{field}: must be two numbers of rows and columns, not {value!r}")


def _require(field: str, value: object, *supported: object) -> None:
    if value not in supported:
        only = ", ".join(map(repr, supported))
        raise ValueError(f"{field}: not supported: {value!r}, only {only}")
