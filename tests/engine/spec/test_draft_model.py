from __future__ import annotations

import pytest

from engine.demo import MODEL_DIR
from engine.errors import ModelLoadError
from engine.spec.draft_model import load_draft_model
from tests.engine.spec.bundled import CPU, F32


def test_a_draft_model_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="vocab_size is 4096, the model's is 32000"):
        load_draft_model(MODEL_DIR, 32000, max_model_len=64, dtype=F32, device=CPU)
    with pytest.raises(ModelLoadError, match="max_position_embeddings is 2048"):
        load_draft_model(MODEL_DIR, 4096, max_model_len=9000, dtype=F32, device=CPU)
