"""Draft heads of the demo model, and the scripts that train them on its own answers."""

from pathlib import Path

HEADS_DIR = Path(__file__).parent
"""The parent of the folders ``eagle3`` and ``eagle``, each in its published layout."""
