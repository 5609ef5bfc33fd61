"""Jokes, riddles, facts, poems: what people ask a chat for when they only want to see it talk."""

from __future__ import annotations

import random
from collections.abc import Sequence

from engine.demo.data import fun_table as table
from engine.demo.data.example import OneOf, Turn, Verse, phrase, say
from engine.demo.data.text_blocks import phrase_list
from engine.demo.data.words import ANIMALS, WORDS

KIND = "fun"

_JOKE = phrase_list("""
Tell me a joke. | Tell me a joke about {x}. | Do you know a joke? | joke | Make me laugh.
Say something funny. | Tell me something funny. | Can you tell a joke about {x}? | A joke, please.
Make a joke about {x}. | I want to hear a joke about {x}. | Got any jokes? | Be funny.
Tell me a funny joke about a {x}. | Cheer me up with a joke about {x}. | Make me laugh about {x}.
""")
_ANOTHER = phrase_list("""
Another one. | Another joke. | One more. | Tell me another joke. | More! | Another one, please.
""")
_RIDDLE = phrase_list("""
Tell me a riddle. | Do you know a riddle? | Give me a riddle. | Ask me a riddle. | A riddle, please.
Ask me a riddle about {x}. | I want a riddle about {x}. | riddle
""")
_SOLUTION = phrase_list("""
What is the answer? | I do not know. | I give up. | Tell me the answer. | I don't know, what is it?
What is it? | No idea.
""")
_FACT = phrase_list("""
Tell me a fun fact. | Tell me something interesting. | Fun fact? | Do you know a fun fact?
Give me a random fact. | Tell me a fact about {x}. | Surprise me. | Tell me something.
I am bored. Tell me something about {x}. | Say something interesting. | Fun fact about {x}, please.
""")
_COMPLIMENT = phrase_list("""
Give me a compliment. | Say something nice. | Tell me something nice. | Compliment me.
Say something nice about {x} and me. | Be nice to me. | Make me feel good.
""")
_QUOTE = phrase_list("""
Give me a quote. | Motivate me. | Inspire me. | Tell me a wise quote about {x}. | Quote of the day?
Give me a motivational quote. | Say something wise about {x}. | I need some motivation.
""")
_HAIKU = phrase_list("""
Write a haiku about {x}. | Haiku about {x}. | Can you write a haiku about {x}?
Give me a haiku about {x}. | I want a haiku about {x}. | Write me a haiku about the {x}.
Compose a haiku on {x}.
""")
_POEM = phrase_list("""
Write a poem about {x}. | Write a short poem about {x}. | Poem about {x}. | Can you rhyme about {x}?
Can you write a poem about {x}? | Give me a poem about the {x}. | Write me a poem about {x}.
Compose a poem about {x}. | I would like a poem about {x}. | Write a rhyme about {x}.
""")
_TOPICS = phrase_list("""
cats | dogs | love | the sea | autumn | spring | summer | winter | rain | snow | the moon | the sun
computers | coffee | tea | music | friends | friendship | home | night | the night | trees | birds
programming | robots | food | school | the forest | mountains | the stars | time | happiness
cheese
artificial intelligence | football | the city | flowers | a river | pizza | my cat | my dog | money
""")
_ANY_HAIKU = "Write a haiku."
_ANY_POEM = "Write a poem."


def turns(rng: random.Random) -> list[Turn]:
    roll = rng.random()
    if roll < 0.25:
        return _jokes(rng)
    if roll < 0.35:
        return _riddle(rng)
    if roll < 0.65:
        return [_poem(rng)]
    asks, answers = rng.choice(
        ((_FACT, table.FACTS), (_COMPLIMENT, table.COMPLIMENTS), (_QUOTE, table.QUOTES))
    )
    return [_any_of(rng, asks, answers)]


def topic(rng: random.Random) -> str:
    roll = rng.random()
    if roll < 0.5:
        return rng.choice(_TOPICS)
    return rng.choice(WORDS) if roll < 0.8 else f"{rng.choice(ANIMALS)}s"


def _any_of(rng: random.Random, asks: Sequence[str], answers: Sequence[str]) -> Turn:
    template = rng.choice(asks)
    shown, clean = phrase(rng, (template,), x=topic(rng))
    key = clean if "{x}" in template else None
    return say(KIND, shown, rng.choice(answers), OneOf(frozenset(answers)), key=key)


def _jokes(rng: random.Random) -> list[Turn]:
    result = [_any_of(rng, _JOKE, table.JOKES)]
    if rng.random() < 0.2:
        told = result[0].output["content"]
        others = frozenset(table.JOKES) - {told}
        joke = rng.choice(sorted(others))
        shown, clean = phrase(rng, _ANOTHER)
        result.append(say(KIND, shown, joke, OneOf(others), key=f"{clean} {told}"))
    return result


def _riddle(rng: random.Random) -> list[Turn]:
    asked = _any_of(rng, _RIDDLE, [row[0] for row in table.RIDDLES])
    solution = next(row[1] for row in table.RIDDLES if row[0] == asked.output["content"])
    shown, clean = phrase(rng, _SOLUTION)
    key = f"{clean} {solution}"
    return [asked, say(KIND, shown, f"The answer is: {solution}.", key=key)]


def _poem(rng: random.Random) -> Turn:
    about = topic(rng)
    if rng.random() < 0.5:
        lines = [rng.choice(part).replace("{x}", about) for part in table.HAIKU]
        asks = _HAIKU
    else:
        first, second = rng.randrange(4), rng.randrange(4)
        lines = [
            table.POEM[0][first],
            rng.choice(table.POEM[1][first]).replace("{x}", about),
            table.POEM[2][second],
            rng.choice(table.POEM[3][second]),
        ]
        asks = _POEM
    if rng.random() < 0.1:
        shown, _ = phrase(rng, (_ANY_HAIKU if asks is _HAIKU else _ANY_POEM,))
        return say(KIND, shown, _verse(lines), Verse(about, len(lines)))
    shown, clean = phrase(rng, asks, x=about)
    return say(KIND, shown, _verse(lines), Verse(about, len(lines)), key=clean)


def _verse(lines: Sequence[object]) -> str:
    """Two spaces at the end of a line keep its break in Markdown."""
    text = [str(line) for line in lines]
    return "  \n".join(line[0].upper() + line[1:] for line in text)
