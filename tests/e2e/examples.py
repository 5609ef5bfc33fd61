"""The examples of the READMEs, to run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def example(readme: str, language: str, word: str) -> str:
    """The one example in that language that has the word in it."""
    blocks = re.findall(rf"```{language}\n(.*?)```", (ROOT / readme).read_text(), re.DOTALL)
    found: str
    (found,) = (block for block in blocks if word in block)
    return found
