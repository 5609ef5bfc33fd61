"""Copying: repeat after me, spell back, first and last words, reversed and sorted lists."""

from __future__ import annotations

import random

from engine.demo.data.example import Turn, phrase, say
from engine.demo.data.text_blocks import phrase_list
from engine.demo.data.words import WORDS, any_word, person

REPEAT = "repeat"
REARRANGE = "rearrange"

_REPEAT = phrase_list("""
Repeat after me: {x} | Repeat: {x} | Say: {x} | Please repeat: {x} | Say this: {x}
Repeat exactly: {x} | Repeat the words "{x}" | Say "{x}" | Please say "{x}" | Echo: {x}
Write this back to me: {x} | Copy this text: {x} | Repeat the following: {x}
Can you repeat this? {x} | Repeat this sentence: {x} | Repeat after me: "{x}"
Print the following text: {x} | Output exactly this: {x}
""")
_FIRST = ("What is the first word of: {x}?", 'First word of "{x}"?', "Give me the first word: {x}")
_LAST = ("What is the last word of: {x}?", 'Last word of "{x}"?', "Give me the last word: {x}")
_HOW_MANY = ('How many words are in "{x}"?', "Count the words: {x}", "How many words: {x}?")
_REVERSE = phrase_list("""
Reverse the order of these words: {x} | Write these words in reverse order: {x}
Say these words backwards: {x} | Reverse this list: {x}
""")
_SORT = phrase_list("""
Sort these numbers: {x} | Sort from small to large: {x} | Put these numbers in order: {x}
Order these numbers from smallest to largest: {x} | Arrange in ascending order: {x}
""")
_LARGEST = phrase_list("""
What is the largest of {x}? | Which number is the biggest: {x}? | Maximum of {x}?
Find the largest number: {x}
""")


def repeat_turns(rng: random.Random) -> list[Turn]:
    text = _sentence(rng)
    shown, _ = phrase(rng, _REPEAT, x=text)
    result = [say(REPEAT, shown, text, key=text)]
    if rng.random() < 0.12:
        again = ("Again.", "Once more.", "Say it again.", "Repeat that.", "One more time, please.")
        result.append(say(REPEAT, phrase(rng, again)[0], text, key=f"again {text}"))
    return result


def _sentence(rng: random.Random) -> str:
    roll = rng.random()
    words = [any_word(rng) for _ in range(rng.randint(1, 8))]
    if roll < 0.1:
        words = [f"{rng.choice(('My friend', 'Dear', 'Hello'))} {person(rng)}", *words]
    if roll < 0.35:
        words[0] = words[0][0].upper() + words[0][1:]
        return " ".join(words) + rng.choice(".!")
    return (", " if roll > 0.9 else " ").join(words)


def rearrange_turns(rng: random.Random) -> list[Turn]:
    kind = rng.randrange(6)
    if kind >= 4:
        return [_numbers(rng, sort=kind == 4)]
    words = [any_word(rng) for _ in range(rng.randint(2, 6))]
    text = " ".join(words)
    if kind == 3:
        words = rng.sample(WORDS, rng.randint(2, 6))
        shown, _ = phrase(rng, _REVERSE, x=", ".join(words))
        answer = ", ".join(reversed(words))
        return [say(REARRANGE, shown, answer, key="reverse " + " ".join(words))]
    words = text.split()
    templates = (_FIRST, _LAST, _HOW_MANY)[kind]
    answer = (
        f'The first word is "{words[0]}".',
        f'The last word is "{words[-1]}".',
        f"There {'is 1 word' if len(words) == 1 else f'are {len(words)} words'}.",
    )[kind]
    shown, _ = phrase(rng, templates, x=text)
    return [say(REARRANGE, shown, answer, key=f"{kind} {text}")]


def _numbers(rng: random.Random, *, sort: bool) -> Turn:
    numbers = rng.sample(range(1, 100), rng.randint(3, 6))
    text = ", ".join(map(str, numbers))
    shown, _ = phrase(rng, _SORT if sort else _LARGEST, x=text)
    answer = ", ".join(map(str, sorted(numbers))) if sort else f"The largest is {max(numbers)}."
    return say(REARRANGE, shown, answer, key=f"{'sort' if sort else 'max'} {text}")
