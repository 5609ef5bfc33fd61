from __future__ import annotations

import pytest

from grammar.vocabulary import Vocabulary
from tests.grammar.vocabularies import byte_vocabulary


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    """Every byte, some merges, specials whose text is legal JSON, and padded logits."""
    return byte_vocabulary()
