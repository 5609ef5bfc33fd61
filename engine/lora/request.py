"""Which adapter a request of the offline API wants."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """An adapter in PEFT's layout; loaded when it is first asked for."""

    lora_name: str
    """Unique, and never empty."""
    lora_path: str | Path
    """The folder of ``adapter_config.json`` and ``adapter_model.safetensors``."""
