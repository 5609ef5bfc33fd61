"""Questions about pictures and their answers, as chats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from PIL import Image

from engine.demo.vision.pictures import Scene, Split, Thing, draw

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
HELLO = "Hello! Show me a picture of digits, letters, shapes or bars, and ask me about it."
ABLE = "I read digits, numbers, letters, words and bar charts, name shapes and colors, and count."
BLIND = "I see no picture. Please send me one."
OTHER = "I can only answer questions about pictures of digits, letters, shapes and bars."

_SHARES = {
    "digit": 30,
    "number": 14,
    "letter": 9,
    "word": 9,
    "shape": 8,
    "pair": 6,
    "count": 9,
    "chart": 11,
    "digits": 3,
    "text": 1,
}
KINDS = tuple(_SHARES)
"""Those of scenes, ``digits`` of two pictures, and ``text`` of none."""
_AGAIN = 0.25
"""How often a second question follows."""


@dataclass(frozen=True)
class Example:
    """A chat about pictures, all of which stand before the first question."""

    kind: str
    pictures: list[Image.Image]
    turns: list[tuple[str, str]]
    """Questions and answers."""


Ask = Callable[[Scene, Random], tuple[str, str]]


def example(kind: str, size: tuple[int, int], split: Split, random: Random) -> Example:
    """size: width and height of its pictures."""
    if kind == "text":
        return Example(kind, [], [random.choice(_TEXTS)(random)])
    if kind == "digits":
        drawn = [draw("digit", size, split, random) for _ in range(2)]
        first, second = (scene.text for _, scene in drawn)
        question = random.choice(
            ("Which digits are these?", "What digits do you see?", "Read both digits.")
        )
        answer = f"The first is {first}, the second is {second}."
        return Example(kind, [picture for picture, _ in drawn], [(question, answer)])
    picture, scene = draw(kind, size, split, random)
    asked = _ASKED[kind]
    first_ask = random.choice(asked)
    turns = [first_ask(scene, random)]
    others = [ask for ask in asked if ask is not first_ask]
    if others and random.random() < _AGAIN:
        turns.append(random.choice(others)(scene, random))
    return Example(kind, [picture], turns)


def examples(size: tuple[int, int], split: Split, random: Random) -> Iterator[Example]:
    """Without end, of all kinds in their shares."""
    kinds, shares = list(_SHARES), list(_SHARES.values())
    while True:
        (kind,) = random.choices(kinds, shares)
        yield example(kind, size, split, random)


def _digit(scene: Scene, random: Random) -> tuple[str, str]:
    question = random.choice(
        (
            "What digit is this?",
            "Which digit is this?",
            "Which digit do you see?",
            "What digit is in the picture?",
            "Read the digit.",
            "Read this digit.",
            "What is the digit?",
            "Tell me the digit.",
            "What digit does the image show?",
        )
    )
    return question, f"The digit is {scene.text}."


def _number(scene: Scene, random: Random) -> tuple[str, str]:
    question = random.choice(
        (
            "What number is this?",
            "Which number is this?",
            "What number do you see?",
            "Read the number.",
            "What is the number?",
            "What number is in the picture?",
            "Which number does the image show?",
        )
    )
    return question, f"The number is {scene.text}."


def _letter(scene: Scene, random: Random) -> tuple[str, str]:
    question = random.choice(
        (
            "What letter is this?",
            "Which letter is this?",
            "Which letter do you see?",
            "Read the letter.",
            "What letter is in the picture?",
        )
    )
    return question, f"The letter is {scene.text}."


def _word(scene: Scene, random: Random) -> tuple[str, str]:
    question = random.choice(
        (
            "What does it say?",
            "What word is this?",
            "Read the word.",
            "What is written here?",
            "Read the text.",
            "What does the picture say?",
            "Which word do you see?",
        )
    )
    return question, f"It says {scene.text}."


def _digits_of(scene: Scene, random: Random) -> tuple[str, str]:
    question = random.choice(("How many digits are there?", "How many digits does it have?"))
    return question, f"There are {NUMBERS[len(scene.text)]} digits."


def _shape(scene: Scene, random: Random) -> tuple[str, str]:
    question = random.choice(
        ("What shape is this?", "Which shape is it?", "What shape do you see?", "Name the shape.")
    )
    return question, f"It is a {scene.things[0].shape}."


def _colour(scene: Scene, random: Random) -> tuple[str, str]:
    thing = scene.things[0]
    what = random.choice(("color", "color", "colour"))
    question = random.choice(
        (f"What {what} is it?", f"What {what} is the {thing.shape}?", f"Which {what} is this?")
    )
    return question, f"It is {thing.colour}."


def _how_many(scene: Scene, random: Random) -> tuple[str, str]:
    thing, count = scene.things[0], len(scene.things)
    what = random.choice((plural(thing.shape), plural(thing.shape), "shapes"))
    question = random.choice(
        (f"How many {what} are there?", f"Count the {what}.", f"How many {what} do you see?")
    )
    if count == 1:
        return question, f"There is one {singular(what)}."
    return question, f"There are {NUMBERS[count]} {what}."


def _their_colour(scene: Scene, random: Random) -> tuple[str, str]:
    question = random.choice(("What color are they?", "Which color do they have?"))
    if len(scene.things) == 1:
        return "What color is it?", f"It is {scene.things[0].colour}."
    return question, f"They are {scene.things[0].colour}."


def _left_or_right(scene: Scene, random: Random) -> tuple[str, str]:
    side = random.choice((0, 1))
    name = ("left", "right")[side]
    thing = scene.things[side]
    question = random.choice(
        (f"What is on the {name}?", f"What do you see on the {name}?", f"What is to the {name}?")
    )
    return question, f"{_a(thing).capitalize()}."


def _where(scene: Scene, random: Random) -> tuple[str, str]:
    side = random.choice((0, 1))
    thing = scene.things[side]
    return f"Where is the {thing.shape}?", f"The {thing.shape} is on the {('left', 'right')[side]}."


def _colour_of(scene: Scene, random: Random) -> tuple[str, str]:
    thing = random.choice(scene.things)
    return f"What color is the {thing.shape}?", f"The {thing.shape} is {thing.colour}."


def _extreme(scene: Scene, random: Random) -> tuple[str, str]:
    word = random.choice(("tallest", "highest", "largest", "shortest", "lowest", "smallest"))
    best = max if word in ("tallest", "highest", "largest") else min
    bar = best(scene.bars, key=lambda bar: bar.value)
    question = random.choice((f"Which bar is the {word}?", f"What is the {word} bar?"))
    return question, f"Bar {bar.name} is the {word}."


def _value(scene: Scene, random: Random) -> tuple[str, str]:
    bar = random.choice(scene.bars)
    question = random.choice(
        (
            f"What is the value of bar {bar.name}?",
            f"How high is bar {bar.name}?",
            f"Value of {bar.name}?",
        )
    )
    return question, f"Bar {bar.name} is {bar.value}."


def _bars(scene: Scene, random: Random) -> tuple[str, str]:
    question = random.choice(("How many bars are there?", "Count the bars."))
    return question, f"There are {NUMBERS[len(scene.bars)]} bars."


def _bar_colour(scene: Scene, random: Random) -> tuple[str, str]:
    bar = random.choice(scene.bars)
    return f"What color is bar {bar.name}?", f"Bar {bar.name} is {bar.colour}."


def _all_values(scene: Scene, random: Random) -> tuple[str, str]:
    question = random.choice(("Read the chart.", "List the values.", "What are the values?"))
    return question, ", ".join(f"{bar.name}: {bar.value}" for bar in scene.bars)


def _describe(scene: Scene, random: Random) -> tuple[str, str]:
    question = random.choice(
        (
            "What is this?",
            "What do you see?",
            "What is in the picture?",
            "What is in this image?",
            "Describe the picture.",
            "Describe this image.",
            "What does the picture show?",
        )
    )
    return question, describe(scene)


def describe(scene: Scene) -> str:
    if scene.text:
        return f"The {scene.kind} {scene.text}."
    if scene.kind == "chart":
        return f"A bar chart with {NUMBERS[len(scene.bars)]} bars."
    if scene.kind == "pair":
        first, second = scene.things
        return f"{_a(first).capitalize()} and {_a(second)}."
    thing, count = scene.things[0], len(scene.things)
    if count == 1:
        return f"{_a(thing).capitalize()}."
    return f"{NUMBERS[count].capitalize()} {thing.colour} {plural(thing.shape)}."


def _a(thing: Thing) -> str:
    article = "an" if thing.colour[0] in "aeiou" else "a"
    return f"{article} {thing.colour} {thing.shape}"


def plural(word: str) -> str:
    return f"{word}es" if word == "cross" else f"{word}s"


def singular(words: str) -> str:
    return words.removesuffix("es") if words == "crosses" else words.removesuffix("s")


def _greeting(random: Random) -> tuple[str, str]:
    return random.choice(
        ("Hello", "Hi", "Hello!", "Hi!", "Hey", "Good morning", "hello", "hi")
    ), HELLO


def _abilities(random: Random) -> tuple[str, str]:
    question = random.choice(
        ("What can you do?", "Who are you?", "Help", "What are you?", "What can you see?")
    )
    return question, ABLE


def _no_picture(random: Random) -> tuple[str, str]:
    question = random.choice(
        (
            "What digit is this?",
            "What number is this?",
            "What does it say?",
            "What is in the picture?",
            "What do you see?",
            "Describe this image.",
            "How many circles are there?",
            "What color is it?",
            "Which bar is the tallest?",
        )
    )
    return question, BLIND


def _unrelated(random: Random) -> tuple[str, str]:
    question = random.choice(
        (
            "Tell me a story.",
            "What is the capital of France?",
            "What is 2 + 2?",
            "How are you?",
            "Write a poem.",
            "What is your name?",
            "Thank you",
            "Who is the president?",
            "Translate this.",
        )
    )
    return question, OTHER


_TEXTS = (_greeting, _abilities, _no_picture, _no_picture, _unrelated)
_ASKED: dict[str, tuple[Ask, ...]] = {
    "digit": (_digit, _digit, _digit, _describe),
    "number": (_number, _number, _number, _digits_of, _describe),
    "letter": (_letter, _letter, _describe),
    "word": (_word, _word, _describe),
    "shape": (_shape, _colour, _describe),
    "pair": (_left_or_right, _where, _colour_of, _describe),
    "count": (_how_many, _how_many, _their_colour, _describe),
    "chart": (_extreme, _value, _bars, _bar_colour, _all_values, _describe),
}
