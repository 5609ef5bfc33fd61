"""The bundled embedding model, and how it was trained and measured."""

from pathlib import Path

EMBEDDING_MODEL_DIR = Path(__file__).parent / "model"
