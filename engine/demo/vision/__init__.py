"""The demo model that sees, and what it was trained with. See ``engine/demo/README.md``."""

from pathlib import Path

VISION_MODEL_DIR = Path(__file__).parent / "model"
