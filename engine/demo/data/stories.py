"""Short stories told from parts: a hero, a friend, a place, a thing that is lost or found."""

from __future__ import annotations

import random

from engine.demo.data.example import Tells, Turn, fill, phrase, say
from engine.demo.data.text_blocks import phrase_list, tables, word_list
from engine.demo.data.words import ANIMALS, FIRST_NAMES

KIND = "story"

_PLACES = word_list("""
forest garden village castle valley harbor meadow mountain island city desert farm library river
school cave market lighthouse ship palace swamp jungle
""")
_THINGS = word_list("""
key map lamp book bell coin kite crown shell letter flute ring boat hat star mirror feather
clock robot dragon sword treasure
""")
_HEROES = ANIMALS + word_list(
    "dragon robot princess knight wizard pirate king queen boy girl ghost"
)
_MOODS = word_list("small brave shy clever curious kind lazy young old happy lonely hungry")

_TABLES = tables("stories")
_ASK_HERO = phrase_list(_TABLES["ask hero"])
_ASK_THING = phrase_list(_TABLES["ask thing"])
_ASK_PLACE = phrase_list(_TABLES["ask place"])
_ASK_ANIMAL = phrase_list(_TABLES["ask animal"])
_ASK_TWO = phrase_list("""
Tell me a story about a {animal} and a {animal2}. | Write a story about a {animal} and a {animal2}.
A story with a {animal} and a {animal2}, please. | Story about a {animal} and a {animal2}?
""")
_ASK_SCENE = phrase_list(_TABLES["ask scene"])
_ASK_NAME = phrase_list(_TABLES["ask name"])
_ASK_ANY = phrase_list(_TABLES["ask any"])

_OPENINGS = phrase_list(_TABLES["openings"])
_EVENTS = phrase_list(_TABLES["events"])
_TROUBLES = phrase_list(_TABLES["troubles"])
_HELPERS = (
    'Then {name} met {friend} the {animal2}. "Do not worry," said {friend}, "I will help you."',
    'A {animal2} named {friend} came by. "We can do it together," said {friend}.',
    'Then {friend} the {animal2} looked up and asked, "Can I help you, {name}?"',
)
_EFFORTS = phrase_list(_TABLES["efforts"])
_ENDINGS = phrase_list(_TABLES["endings"])
_MORALS = (
    "What did {name} learn? A good friend is worth more than gold.",
    "And so {name} learned that nobody has to do everything alone.",
)
_PARTS = (_OPENINGS, _EVENTS, _TROUBLES, _HELPERS, _EFFORTS, _ENDINGS)


def turns(rng: random.Random) -> list[Turn]:
    name, friend = rng.sample(FIRST_NAMES, 2)
    animal, animal2 = rng.sample(_HEROES, 2)
    values = {
        "name": name,
        "friend": friend,
        "animal": animal,
        "animal2": animal2,
        "place": rng.choice(_PLACES),
        "thing": rng.choice(_THINGS),
        "mood": rng.choice(_MOODS),
    }
    asks = rng.choices(
        (
            *(_ASK_HERO, _ASK_THING, _ASK_PLACE, _ASK_ANIMAL),
            *(_ASK_TWO, _ASK_SCENE, _ASK_NAME, _ASK_ANY),
        ),
        (4, 4, 3, 1, 2, 3, 2, 1),
    )[0]
    template = rng.choice(asks)
    asked = tuple(part for part in values if f"{{{part}}}" in template)
    shown, clean = phrase(rng, (template,), **values)
    key = clean if len(asked) > 1 or asked == ("name",) else None
    check = Tells(tuple(values[part] for part in asked))
    result = [say(KIND, shown, _tell(rng, values), check, key=key)]
    if rng.random() < 0.1:
        result.append(_question(rng, values, clean))
    return result


def _tell(rng: random.Random, values: dict[str, str]) -> str:
    sentences = [fill(rng.choice(part), values) for part in _PARTS]
    if rng.random() < 0.25:
        sentences.insert(-1, fill(rng.choice(_MORALS), values))
    if rng.random() < 0.3:
        return " ".join(sentences)
    middle = len(sentences) // 2
    story = " ".join(sentences[:middle]) + "\n\n" + " ".join(sentences[middle:])
    title = f"**{values['name']} and the {values['thing']}**\n\n"
    return (title if rng.random() < 0.4 else "") + story


def _question(rng: random.Random, values: dict[str, str], told: str) -> Turn:
    """A follow-up whose answer stands in the story above."""
    name, thing = values["name"], values["thing"]
    question, answer = rng.choice(
        (
            ("Who was the hero of the story?", f"The hero was {name}, the {values['animal']}."),
            ("What was the name of the friend?", f"The friend was called {values['friend']}."),
            ("Who helped?", f"{values['friend']} the {values['animal2']} helped."),
            ("What thing was in the story?", f"The story was about a {thing}."),
        )
    )
    return say(
        KIND, phrase(rng, (question,))[0], answer, key=f"{told} {question} {values['friend']}"
    )
