"""What the demo model can explain in a sentence: things, people, reasons, words."""

from __future__ import annotations

from engine.demo.data.text_blocks import rows, tables

_TABLES = tables("knowledge")
DEFINITIONS = rows(_TABLES["definitions"])

PEOPLE = rows(_TABLES["people"])

REASONS = rows(_TABLES["reasons"])

QUESTIONS = rows(_TABLES["questions"])

MONEY = rows(_TABLES["money"])

WORDS_LIKE = rows(_TABLES["words like"])

MORE_PLURALS = rows(_TABLES["more plurals"])

MORE_PASTS = rows(_TABLES["more pasts"])

MORE_TRANSLATIONS = rows(_TABLES["more translations"])
