"""What the user said about themselves, and questions about it later in the chat."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from engine.demo.data.example import Turn, mentions, phrase, say
from engine.demo.data.text_blocks import phrase_list
from engine.demo.data.words import (
    CITIES,
    COLOURS,
    FIRST_NAMES,
    FOODS,
    JOBS,
    PETS,
    made_up,
    person,
)

KIND = "memory"
Told = dict[str, str]


@dataclass(frozen=True)
class Trait:
    """One thing a user may tell: how they say it, what we reply, how they ask for it later."""

    tells: tuple[str, ...]
    reply: str
    asks: tuple[str, ...]
    answer: str
    unknown: str
    draw: Callable[[random.Random], str]


def _name(rng: random.Random) -> str:
    return person(rng) if rng.random() < 0.8 else made_up(rng).capitalize()


def _city(rng: random.Random) -> str:
    return rng.choice(CITIES) if rng.random() < 0.85 else made_up(rng).capitalize()


TRAITS = {
    "name": Trait(
        tells=phrase_list("""
            My name is {x}. | I am {x}. | I'm {x}. | Hi, my name is {x}. | Hello, I'm {x}.
            Hi! I am {x}. | Call me {x}. | You can call me {x}. | Hello, this is {x}.
            My friends call me {x}. | my name's {x}
        """),
        reply="Nice to meet you, {x}!",
        asks=phrase_list("""
            What is my name? | What's my name? | Do you know my name? | Who am I?
            Do you remember my name? | Can you tell me my name? | How am I called?
            Tell me my name. | What was my name again?
        """),
        answer="Your name is {x}.",
        unknown="You have not told me your name yet.",
        draw=_name,
    ),
    "city": Trait(
        tells=phrase_list("""
            I live in {x}. | I am from {x}. | My home is in {x}. | I come from {x}.
            My city is {x}. | I'm from {x}.
        """),
        reply="{x} sounds like a nice place!",
        asks=phrase_list("""
            Where do I live? | Which city do I live in? | Where am I from? | What is my city?
            Do you remember where I live? | In which city is my home?
        """),
        answer="You live in {x}.",
        unknown="You have not told me where you live yet.",
        draw=_city,
    ),
    "color": Trait(
        tells=phrase_list("""
            My favourite colour is {x}. | My favorite color is {x}. | I like the colour {x} most.
            I love the color {x}.
        """),
        reply="{X} is a beautiful colour!",
        asks=phrase_list("""
            What is my favourite colour? | What's my favorite color? | Which colour do I like most?
            Do you remember my favourite colour? | Tell me my favourite colour.
        """),
        answer="Your favourite colour is {x}.",
        unknown="You have not told me your favourite colour yet.",
        draw=lambda rng: rng.choice(COLOURS),
    ),
    "age": Trait(
        tells=phrase_list("""
            I am {x} years old. | My age is {x}. | I'm {x} years old. | I turned {x} this year.
            I am {x}.
        """),
        reply="Thank you, I will remember that you are {x}.",
        asks=phrase_list("""
            How old am I? | What is my age? | Do you know how old I am? | Do you remember my age?
            Tell me my age.
        """),
        answer="You are {x} years old.",
        unknown="You have not told me your age yet.",
        draw=lambda rng: str(rng.randint(5, 99)),
    ),
    "job": Trait(
        tells=phrase_list("""
            I work as a {x}. | My job is {x}. | I am a {x}. | I'm a {x} by profession.
            I have a job as a {x}.
        """),
        reply="Being a {x} must be interesting!",
        asks=phrase_list("""
            What is my job? | What do I do for work? | What's my profession?
            Do you remember my job? | Tell me my job.
        """),
        answer="You work as a {x}.",
        unknown="You have not told me your job yet.",
        draw=lambda rng: rng.choice(JOBS),
    ),
    "food": Trait(
        tells=phrase_list("""
            I love to eat {x}. | My favourite food is {x}. | I like {x}. | My favorite food is {x}.
            I could eat {x} every day.
        """),
        reply="I have heard that {x} can be delicious!",
        asks=phrase_list("""
            What is my favourite food? | What do I like to eat? | What's my favorite food?
            Which food do I like? | Do you remember my favourite food?
        """),
        answer="Your favourite food is {x}.",
        unknown="You have not told me your favourite food yet.",
        draw=lambda rng: rng.choice(FOODS),
    ),
    "pet": Trait(
        tells=phrase_list("""
            I have a dog called {x}. | My dog is called {x}. | My dog's name is {x}.
            I have a dog named {x}.
        """),
        reply="{x} is a lovely name for a dog!",
        asks=phrase_list("""
            What is my dog called? | What is the name of my dog? | What's my dog's name?
            Do you remember my dog's name? | Tell me the name of my dog.
        """),
        answer="Your dog is called {x}.",
        unknown="You have not told me about a dog yet.",
        draw=lambda rng: rng.choice(PETS + FIRST_NAMES),
    ),
    "number": Trait(
        tells=phrase_list("""
            My lucky number is {x}. | My favourite number is {x}. | My number is {x}.
            My favorite number is {x}. | I am thinking of the number {x}.
        """),
        reply="I will remember the number {x}.",
        asks=phrase_list("""
            What is my lucky number? | What is my favourite number? | What's my number?
            What was my number? | Do you remember my number? | Which number did I tell you?
        """),
        answer="Your number is {x}.",
        unknown="You have not told me a number yet.",
        draw=lambda rng: str(rng.randint(0, 999)),
    ),
}
_WEIGHTS = {"name": 4, "city": 2, "color": 1.5, "age": 1.2, "job": 1.2, "food": 1.2, "pet": 1.2,
            "number": 1.2}  # fmt: skip
_REMEMBER = phrase_list("""
{x} Remember that. | {x} Please remember it. | {x} | {x} | {x} | By the way, {x}
{x} Nice to meet you.
""")
_NAME_AND_CITY = phrase_list("""
My name is {x} and I live in {y}. | I am {x} from {y}. | Hi, I'm {x} and I come from {y}.
I live in {y} and my name is {x}. | Hello! {x} here, from {y}.
""")


def turns(rng: random.Random, told: Told) -> list[Turn]:
    """Tells something new, or asks for what was `told` (updated in place) or never told."""
    roll = rng.random()
    if told and roll < 0.6:
        return [_ask(rng, rng.choice(sorted(told)), told)]
    missing = [trait for trait in TRAITS if trait not in told]
    if missing and roll > 0.9:
        return [_ask(rng, rng.choice(missing), told)]
    if roll < 0.2 or not missing:
        return [_tell_name_and_city(rng, told)]
    traits = rng.choices(list(TRAITS), list(_WEIGHTS.values()))
    result = [_tell(rng, trait, told) for trait in traits]
    if rng.random() < 0.4:
        result.append(_ask(rng, traits[0], told))
    return result


def _tell(rng: random.Random, trait: str, told: Told) -> Turn:
    spec, value = TRAITS[trait], TRAITS[trait].draw(rng)
    told[trait] = value
    template = rng.choice(_REMEMBER).replace("{x}", rng.choice(spec.tells))
    shown, clean = phrase(rng, (template,), x=value)
    reply = spec.reply.replace("{x}", value).replace("{X}", value.capitalize())
    return say(KIND, shown, reply, mentions(value), key=clean)


def _tell_name_and_city(rng: random.Random, told: Told) -> Turn:
    name, city = _name(rng), _city(rng)
    told.update(name=name, city=city)
    shown, clean = phrase(rng, _NAME_AND_CITY, x=name, y=city)
    reply = f"Nice to meet you, {name}! {city} sounds like a nice place."
    return say(KIND, shown, reply, mentions(name, city), key=clean)


def _ask(rng: random.Random, trait: str, told: Told) -> Turn:
    spec, value = TRAITS[trait], told.get(trait)
    shown, clean = phrase(rng, spec.asks)
    if value is None:
        return say(
            KIND, shown, spec.unknown, mentions("not told"), key=f"{clean} {sorted(told.values())}"
        )
    answer = spec.answer.replace("{x}", value)
    return say(KIND, shown, answer, mentions(value), key=f"{clean} {value}")
