"""What config.json says in one published checkpoint of each family: shapes to be measured with
random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

SHAPES: dict[str, dict[str, Any]] = msgspec.json.decode(
    Path(__file__).with_name("shapes.json").read_bytes()
)
"""By the name of the checkpoint."""

QUANTIZATIONS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "fp8": None,
    "fp8-blocks": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "mxfp4": {"quant_method": "mxfp4"},
}
"""What is added to a config.json as its quantization_config; "fp8" rounds while loading."""
