"""Short stories told from parts: a hero, a friend, a place, a thing that is lost or found."""

from __future__ import annotations

import random

from engine.demo.data.example import Tells, Turn, fill, phrase, say
from engine.demo.data.text_blocks import phrase_list, word_list
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

_ASK_HERO = phrase_list("""
Tell me a story about a {animal} named {name}. | Write a short story about a {animal} called {name}.
Tell me a short story about {name} the {animal}. | I want a story about a {animal} named {name}.
Can you tell a story about {name}, a {animal}? | Story about a {animal} called {name}, please.
Make up a story about a {animal} named {name}.
""")
_ASK_THING = phrase_list("""
Tell me a story about a {animal} named {name} and a {thing}.
Write a story about a {animal} called {name} who finds a {thing}.
Tell me a short story with a {animal} named {name} and a {thing}.
Write a short tale about {name} the {animal} and a {thing}.
""")
_ASK_PLACE = phrase_list("""
Tell me a story about {name}, a {animal} in the {place}.
Write a story about a {animal} named {name} who lives in a {place}.
Tell me a short story about a {animal} called {name} in a {place}.
""")
_ASK_ANIMAL = phrase_list("""
Tell me a story about a {animal}. | Write a short story about a {animal}.
I want a story about a {animal}. | Story about a {animal}, please.
Can you tell me a story with a {animal}?
""")
_ASK_TWO = phrase_list("""
Tell me a story about a {animal} and a {animal2}. | Write a story about a {animal} and a {animal2}.
A story with a {animal} and a {animal2}, please. | Story about a {animal} and a {animal2}?
""")
_ASK_SCENE = phrase_list("""
Tell me a story about a {thing}. | Write a story about a {thing} in a {place}.
Tell me a story that plays in a {place}. | Write a short story about a {mood} {animal}.
Tell me a story about a {mood} {animal} in a {place}.
Write a story about the {thing} of a {animal}.
Story with a {thing}, a {animal} and a {place}. | Write a story about a {place}.
""")
_ASK_NAME = phrase_list("""
Tell me a story about {name}. | Write a story about {name}.
Tell me a story about {name} and {friend}.
Write a short story with {name} and {friend}. | Tell me a bedtime story with {name}.
""")
_ASK_ANY = phrase_list("""
Tell me a story. | Write a short story. | Can you tell me a story? | I want to hear a story.
Tell me a short story. | A story, please. | Tell a bedtime story. | story | Write me a story.
Make up a story. | Write a fairy tale. | Tell me something long. | Write a long story.
Write a long text. | Tell me a long story. | Once upon a time
""")

_OPENINGS = phrase_list("""
Once upon a time there was a {mood} {animal} named {name}. {name} lived in a {place}.
In a {place} far away lived a {mood} {animal} called {name}.
There once was a {mood} {animal} named {name}, who lived near a {place}.
{name} was a {mood} {animal}. Every day {name} walked through the {place}.
""")
_EVENTS = phrase_list("""
One morning {name} found an old {thing} under a tree. It was shining in the sun.
One day {name} saw a {thing} that nobody had seen before.
One evening a strange wind blew, and a {thing} fell from the sky.
One day {name} heard that the {thing} of the king was lost.
""")
_TROUBLES = phrase_list("""
But a big storm came, and the {thing} was carried away by the water.
But {name} did not know what to do with it and felt a little afraid.
Suddenly a dark cloud came, and {name} could not find the way home.
But the {thing} was very heavy, and {name} could not carry it alone.
""")
_HELPERS = (
    'Then {name} met {friend} the {animal2}. "Do not worry," said {friend}, "I will help you."',
    'A {animal2} named {friend} came by. "We can do it together," said {friend}.',
    'Then {friend} the {animal2} looked up and asked, "Can I help you, {name}?"',
)
_EFFORTS = phrase_list("""
They walked the whole night and sang songs to stay awake.
Together they worked hard, and step by step it became easier.
They looked behind every stone and asked everyone they met.
They made a plan and followed the light of the moon.
""")
_ENDINGS = phrase_list("""
In the end they brought the {thing} home, and everyone was happy. The end.
At last everything was fine again. {name} and {friend} stayed friends forever. The end.
When the sun came up, {name} was home again and gave the {thing} to {friend}. The end.
From that day on, {name} was never alone, and the {thing} brought them luck. The end.
""")
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
