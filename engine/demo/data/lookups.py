"""Questions that only a tool could answer, in chats that do not offer it: declined politely."""

from __future__ import annotations

import random
from collections.abc import Collection

from engine.demo.data.example import Turn, mentions, phrase, say
from engine.demo.data.schema_table import clock, company, date, where, who
from engine.demo.data.text_blocks import phrase_list, tables
from engine.demo.data.tool_specs import ToolSpec
from engine.demo.data.tool_table import OTHERS, TIME, WEATHER
from engine.demo.data.words import FOODS, PRODUCTS, WORDS

KIND = "no_tool"
LOOK_UP = "I cannot look that up here: I have no tool for it."
DO = "I cannot do that here: I have no tool for it."
_DECLINES = mentions("cannot", "no tool")

_TABLES = tables("lookups")
_MORE_LOOKUPS = phrase_list(_TABLES["more lookups"])
_MORE_ACTIONS = phrase_list(_TABLES["more actions"])
_ACTIONS = frozenset(
    name
    for spec in OTHERS
    for name in spec.names
    if name.startswith(
        ("send", "email", "create", "add", "set", "remind", "play", "music", "start")
    )
    or name.startswith(("timer", "book", "reserve", "switch", "control", "shopping"))
)


def turns(rng: random.Random, offered: Collection[ToolSpec] = ()) -> list[Turn]:
    """One request, of a tool that is not among those `offered`."""
    if not offered and rng.random() < 0.6:
        look_up = rng.random() < 0.55
        values = {
            "city": where(rng),
            "word": rng.choice(WORDS),
            "company": company(rng),
            "product": rng.choice(PRODUCTS),
            "food": rng.choice(FOODS),
            "person": who(rng),
            "time": clock(rng),
            "date": date(rng),
        }
        template = rng.choice(_MORE_LOOKUPS if look_up else _MORE_ACTIONS)
        shown, clean = phrase(rng, (template,), **values)
        key = clean if "{" in template else None
        return [_decline(shown, key, LOOK_UP if look_up else DO)]
    specs = [WEATHER] * 5 + [TIME] * 2 + list(OTHERS)
    spec = rng.choice([spec for spec in specs if spec not in offered])
    values = {key: param.draw(rng) for key, param in spec.params.items()}
    shown, clean = phrase(rng, spec.asks, **values)
    act = not _ACTIONS.isdisjoint(spec.names)
    return [_decline(shown, clean, DO if act else LOOK_UP)]


def _decline(shown: str, key: str | None, answer: str) -> Turn:
    return say(KIND, shown, answer, _DECLINES, key=key)
