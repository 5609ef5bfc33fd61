"""The facts that the demo model knows, as tables. `facts.py` asks about them."""

from __future__ import annotations

from engine.demo.data.text_blocks import rows, tables

_TABLES = tables("fact")
COUNTRIES = rows(_TABLES["countries"])

ELEMENTS = rows(_TABLES["elements"])

OPPOSITES = rows(_TABLES["opposites"])

ANIMALS = rows(_TABLES["animals"])

PLANETS = rows(_TABLES["planets"])

COLOUR_OF = rows(_TABLES["colour of"])

MIXES = rows(_TABLES["mixes"])

AUTHORS = rows(_TABLES["authors"])

PLURALS = rows(_TABLES["plurals"])

PASTS = rows(_TABLES["pasts"])

TRANSLATIONS = rows(_TABLES["translations"])

COUNTS = rows(_TABLES["counts"])
