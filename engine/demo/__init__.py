"""The bundled demo model: its weights, the data it learned from and how it was trained."""

from __future__ import annotations

from pathlib import Path

MODEL_DIR: Path = Path(__file__).parent / "model"
"""The Hugging Face folder of the trained model: config, weights, tokenizer, chat template."""
