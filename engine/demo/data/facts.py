"""Questions about the fact tables, in several phrasings, with follow-ups about another row."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from engine.demo.data import fact_table as table
from engine.demo.data import knowledge_table as more
from engine.demo.data.example import Turn, fill, mentions, phrase, say
from engine.demo.data.text_blocks import phrase_list
from engine.demo.data.words import DAYS, MONTHS

KIND = "fact"


@dataclass(frozen=True)
class Topic:
    """One relation x → y: how people ask for y, how the model says it, and all the pairs."""

    questions: tuple[str, ...]
    answers: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]
    follow_ups: tuple[str, ...] = ()
    weight: float = 1.0


def _column(rows: Sequence[Sequence[str]], x: int, y: int) -> tuple[tuple[str, str], ...]:
    return tuple((row[x], row[y]) for row in rows)


def _neighbours(names: Sequence[str], step: int) -> tuple[tuple[str, str], ...]:
    return tuple((name, names[(i + step) % len(names)]) for i, name in enumerate(names))


def _translation(language: str, column: int) -> Topic:
    return Topic(
        (
            f'How do you say "{{x}}" in {language}?',
            f'What is "{{x}}" in {language}?',
            f"Translate {{x}} to {language}.",
            f"{{x}} in {language}?",
            f"What is the {language} word for {{x}}?",
            f'Translate "{{x}}" into {language}, please.',
        ),
        (f'"{{x}}" in {language} is "{{y}}".',),
        _column(table.TRANSLATIONS + more.MORE_TRANSLATIONS, 0, column),
        ('And "{x}"?', "What about {x}?"),
        1.6,
    )


TOPICS = (
    Topic(
        phrase_list("""
            What is the capital of {x}? | What's the capital of {x}? | Capital of {x}?
            Tell me the capital of {x}. | Which city is the capital of {x}? | {x}'s capital?
            Do you know the capital of {x}? | Name the capital of {x}.
            What is the capital city of {x}? | I forgot the capital of {x}. What is it?
            Can you tell me what the capital of {x} is?
        """),
        ("The capital of {x} is {y}.",),
        _column(table.COUNTRIES, 0, 1),
        ("And of {x}?", "What about {x}?", "And {x}?", "How about {x}?", "And the capital of {x}?"),
        6.0,
    ),
    Topic(
        phrase_list("""
            Which country has {x} as its capital? | {x} is the capital of which country?
            What country is {x} the capital of? | In which country is {x} the capital?
            {x} is the capital of what? | Of which country is {x} the capital?
        """),
        ("{x} is the capital of {y}.",),
        _column(table.COUNTRIES, 1, 0),
        ("And {x}?", "What about {x}?"),
        2.5,
    ),
    Topic(
        phrase_list("""
            On which continent is {x}? | Which continent is {x} on? | What continent is {x} in?
            Where is {x}? | Tell me the continent of {x}. | {x} is on which continent?
            In which part of the world is {x}?
        """),
        ("{x} is in {y}.",),
        _column(table.COUNTRIES, 0, 2),
        ("And {x}?", "What about {x}?"),
        2.5,
    ),
    Topic(
        phrase_list("""
            What is the chemical symbol for {x}? | What is the symbol of {x}?
            Chemical symbol of {x}? | What's the chemical symbol of {x}?
            Which symbol does {x} have? | Give me the symbol for {x}.
        """),
        ("The chemical symbol of {x} is {y}.",),
        _column(table.ELEMENTS, 0, 1),
        ("And of {x}?", "And {x}?", "What about {x}?"),
    ),
    Topic(
        phrase_list("""
            What is the atomic number of {x}? | Atomic number of {x}?
            Which atomic number does {x} have? | Tell me the atomic number of {x}.
            What number is {x} in the periodic table?
        """),
        ("The atomic number of {x} is {y}.",),
        _column(table.ELEMENTS, 0, 2),
        ("And of {x}?", "And {x}?", "What about {x}?"),
    ),
    Topic(
        phrase_list("""
            Which element has the symbol {x}? | What element is {x}?
            What does the chemical symbol {x} mean? | {x} is the symbol of which element?
            The symbol {x} stands for which element?
        """),
        ("{x} is the chemical symbol of {y}.",),
        _column(table.ELEMENTS, 1, 0),
        ("And {x}?",),
        0.7,
    ),
    Topic(
        phrase_list("""
            What is the opposite of {x}? | Opposite of {x}? | What's the opposite of {x}?
            Give me the opposite of {x}. | Tell me the opposite of the word {x}.
            The opposite of {x} is? | What is the antonym of {x}?
        """),
        ("The opposite of {x} is {y}.",),
        _column(table.OPPOSITES, 0, 1) + _column(table.OPPOSITES, 1, 0),
        ("And of {x}?", "And {x}?", "What about {x}?"),
        1.6,
    ),
    Topic(
        phrase_list("""
            What is a baby {x} called? | What do you call a young {x}?
            What is the name for a baby {x}? | How is a young {x} called?
            A baby {x} is called what?
        """),
        ("A young {x} is called a {y}.",),
        _column(table.ANIMALS, 0, 1),
        ("And a baby {x}?", "And a young {x}?"),
        0.6,
    ),
    Topic(
        phrase_list("""
            What sound does a {x} make? | What does a {x} do when it makes a noise?
            Which sound does a {x} make? | What noise does a {x} make? | How does a {x} sound?
        """),
        ("A {x} {y}.",),
        _column(table.ANIMALS, 0, 2),
        ("And a {x}?",),
        0.6,
    ),
    Topic(
        phrase_list("""
            How many legs does a {x} have? | Tell me how many legs a {x} has.
            A {x} has how many legs? | What is the number of legs of a {x}?
            Number of legs of a {x}?
        """),
        ("A {x} has {y} legs.",),
        _column(table.ANIMALS, 0, 3),
        ("And a {x}?",),
        0.5,
    ),
    Topic(
        phrase_list("""
            Which planet is {x} from the sun? | What is the {x} planet from the sun?
            Name the {x} planet from the sun. | Which planet is the {x} one, counted from the sun?
            The {x} planet of the solar system is?
        """),
        ("The {x} planet from the sun is {y}.",),
        _column(table.PLANETS, 1, 0),
        ("And the {x}?",),
        0.5,
    ),
    Topic(
        phrase_list("""
            Which planet is {x}? | What is {x}? | What is the name of {x}?
            Tell me which planet is {x}. | Do you know {x}?
        """),
        ("{y} is {x}.",),
        _column(table.PLANETS, 2, 0),
        weight=0.4,
    ),
    Topic(
        phrase_list("""
            What colour is {x}? | What color is {x}? | Which colour does {x} have?
            Tell me the colour of {x}. | What is the color of {x}?
        """),
        ("The colour of {x} is {y}.",),
        _column(table.COLOUR_OF, 0, 1),
        ("And {x}?",),
        0.6,
    ),
    Topic(
        phrase_list("""
            What do you get when you mix {x}? | What colour do {x} make? | What is a mix of {x}?
            Mixing {x} gives which colour? | If I mix {x}, what do I get? | {x} make what color?
        """),
        ("When you mix {x}, you get {y}.",),
        _column(table.MIXES, 0, 1),
        ("And {x}?",),
        0.5,
    ),
    Topic(
        phrase_list("""
            Who wrote {x}? | Who is the author of {x}? | Author of {x}? | Which writer wrote {x}?
            {x} was written by whom? | Tell me who wrote {x}.
        """),
        ("{x} was written by {y}.",),
        _column(table.AUTHORS, 0, 1),
        ("And {x}?", "And who wrote {x}?"),
        0.9,
    ),
    Topic(
        phrase_list("""
            What is the plural of {x}? | Plural of {x}? | What's the plural form of {x}?
            Give me the plural of {x}. | How do you write {x} in the plural?
        """),
        ("The plural of {x} is {y}.",),
        _column(table.PLURALS + more.MORE_PLURALS, 0, 1),
        ("And of {x}?", "And {x}?"),
        0.7,
    ),
    Topic(
        phrase_list("""
            What is the past tense of {x}? | Past tense of {x}? | What's the simple past of {x}?
            Give me the past tense of {x}. | How do you say {x} in the past?
        """),
        ("The past tense of {x} is {y}.",),
        _column(table.PASTS + more.MORE_PASTS, 0, 1),
        ("And of {x}?", "And {x}?"),
        0.8,
    ),
    Topic(
        phrase_list("""
            How many {x}? | Do you know how many {x}? | Tell me how many {x}.
            I want to know how many {x}. | Can you tell me how many {x}?
        """),
        ("{y}.",),
        tuple((row[0], f"There are {row[1]} {row[2]}") for row in table.COUNTS),
        weight=0.7,
    ),
    Topic(
        phrase_list("""
            Which day comes after {x}? | What day is after {x}? | What is the day after {x}?
            If today is {x}, what day is tomorrow? | Which day follows {x}?
        """),
        ("The day after {x} is {y}.",),
        _neighbours(DAYS, 1),
        ("And after {x}?",),
        0.4,
    ),
    Topic(
        phrase_list("""
            Which day comes before {x}? | What day is before {x}? | What is the day before {x}?
            If today is {x}, what day was yesterday?
        """),
        ("The day before {x} is {y}.",),
        _neighbours(DAYS, -1),
        ("And before {x}?",),
        0.4,
    ),
    Topic(
        phrase_list("""
            Which month comes after {x}? | What month is after {x}? | What is the month after {x}?
            Which month follows {x}?
        """),
        ("The month after {x} is {y}.",),
        _neighbours(MONTHS, 1),
        ("And after {x}?",),
        0.4,
    ),
    Topic(
        phrase_list("""
            Which month comes before {x}? | What month is before {x}?
            What is the month before {x}?
        """),
        ("The month before {x} is {y}.",),
        _neighbours(MONTHS, -1),
        ("And before {x}?",),
        0.4,
    ),
    Topic(
        phrase_list("""
            What is the currency of {x}? | Which currency does {x} use? | Currency of {x}?
            What money do they use in {x}? | How do people pay in {x}?
            What's the currency in {x}? | Tell me the currency of {x}.
        """),
        ("The currency of {x} is the {y}.",),
        _column(more.MONEY, 0, 1),
        ("And of {x}?", "And in {x}?", "What about {x}?"),
    ),
    Topic(
        phrase_list("""
            What language do they speak in {x}? | Which language is spoken in {x}?
            What is the language of {x}? | Language of {x}? | What do people speak in {x}?
            What's the official language of {x}?
        """),
        ("In {x} most people speak {y}.",),
        _column(more.MONEY, 0, 2),
        ("And in {x}?", "What about {x}?"),
    ),
    Topic(
        phrase_list("""
            What is a synonym of {x}? | Synonym for {x}? | Give me a synonym for {x}.
            What is another word for {x}? | Another word for {x}? | Which word means {x}?
            Which word has the same meaning as {x}?
        """),
        ('A synonym of "{x}" is "{y}".',),
        _column(more.WORDS_LIKE, 0, 1),
        ("And for {x}?", "And {x}?"),
        0.8,
    ),
    Topic(
        phrase_list("""
            What rhymes with {x}? | Which word rhymes with {x}? | Rhyme for {x}?
            Give me a rhyme for {x}. | A word that rhymes with {x}? | Find a rhyme for {x}.
        """),
        ('"{y}" rhymes with "{x}".',),
        _column(more.WORDS_LIKE, 0, 2),
        ("And with {x}?", "And {x}?"),
        0.8,
    ),
    _translation("French", 1),
    _translation("Spanish", 2),
    _translation("German", 3),
)

_WEIGHTS = [topic.weight for topic in TOPICS]


def turns(rng: random.Random) -> list[Turn]:
    """A question, and in one case of four the same about one or two other rows."""
    topic = rng.choices(TOPICS, _WEIGHTS)[0]
    count = 1 if not topic.follow_ups or rng.random() < 0.75 else rng.randint(2, 3)
    rows = rng.sample(topic.pairs, count)
    result = [_ask(rng, topic.questions, topic, *rows[0])]
    result += [_ask(rng, topic.follow_ups, topic, *row, topic.questions[0]) for row in rows[1:]]
    return result


def _ask(
    rng: random.Random, templates: Sequence[str], topic: Topic, x: str, y: str, context: str = ""
) -> Turn:
    asked = x.lower() if rng.random() < 0.2 and x not in SYMBOLS else x
    shown, clean = phrase(rng, templates, x=asked)
    answer = fill(rng.choice(topic.answers), {"x": x, "y": y})
    answer = answer[0].upper() + answer[1:]
    return say(KIND, _capital_letter(shown), answer, mentions(y), key=f"{context} {clean}")


def _capital_letter(text: str) -> str:
    return text.replace("the ", "The ", 1) if text.startswith("the ") else text


SYMBOLS = frozenset(row[1] for row in table.ELEMENTS)
