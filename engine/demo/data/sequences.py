"""Long regular answers: counting up and down, multiples, the alphabet, days and months."""

from __future__ import annotations

import random
import string

from engine.demo.data.example import Turn, phrase, say
from engine.demo.data.text_blocks import phrase_list
from engine.demo.data.words import DAYS, MONTHS

KIND = "sequence"
_UP = phrase_list("""
Count from {a} to {b}. | Can you count from {a} to {b}? | Write the numbers from {a} to {b}.
Count up from {a} to {b}. | List all numbers from {a} to {b}. | Numbers {a} to {b}?
""")
_UP_FROM_ONE = phrase_list("""
Count to {b}. | Please count to {b}. | Count up to {b}. | Can you count to {b}?
""")
_DOWN = phrase_list("""
Count down from {b} to {a}. | Count backwards from {b} to {a}. | Countdown from {b} to {a}.
Write the numbers from {b} down to {a}.
""")
_PARITY = phrase_list("""
List the {p} numbers from {a} to {b}. | Write all {p} numbers between {a} and {b}.
Which numbers from {a} to {b} are {p}?
""")
_MULTIPLES = phrase_list("""
List the first {n} multiples of {k}. | Give me {n} multiples of {k}.
What are the first {n} multiples of {k}? | Count by {k}s, {n} times.
""")
_LETTERS = phrase_list("""
Say the alphabet from {a} to {b}. | List the letters from {a} to {b}.
Write the letters {a} to {b}. | Which letters are from {a} to {b} in the alphabet?
""")
_ALPHABET = phrase_list("""
Say the alphabet. | Write the alphabet. | What is the alphabet? | Recite the alphabet.
Can you say the alphabet? | The alphabet, please.
""")
_CYCLES = (
    ("days of the week", DAYS),
    ("months of the year", MONTHS),
)
_NAMED = phrase_list("""
Name the {things}. | List the {things}. | What are the {things}? | Tell me the {things}.
Write down all {things}. | Can you list the {things}?
""")


def turns(rng: random.Random) -> list[Turn]:
    roll = rng.random()
    if roll < 0.62:
        return [_counting(rng)]
    if roll < 0.76:
        n, k = rng.randint(3, 12), rng.randint(2, 12)
        shown, clean = phrase(rng, _MULTIPLES, n=n, k=k)
        return [_turn(shown, clean, [str(k * i) for i in range(1, n + 1)])]
    if roll < 0.88:
        a, b = sorted(rng.sample(string.ascii_uppercase, 2))
        letters = list(string.ascii_uppercase[ord(a) - 65 : ord(b) - 64])
        shown, clean = phrase(rng, _LETTERS, a=a, b=b)
        return [_turn(shown, clean, letters)]
    if roll < 0.93:
        return [_turn(phrase(rng, _ALPHABET)[0], None, list(string.ascii_uppercase))]
    things, items = rng.choice(_CYCLES)
    return [_turn(phrase(rng, _NAMED, things=things)[0], None, items)]


def _counting(rng: random.Random) -> Turn:
    a = 1 if rng.random() < 0.5 else rng.randint(0, 60)
    b = a + (rng.randint(2, 30) if rng.random() < 0.9 else rng.randint(31, 60))
    numbers = list(range(a, b + 1))
    roll = rng.random()
    if roll < 0.25:
        shown, clean = phrase(rng, _DOWN, a=a, b=b)
        numbers.reverse()
    elif roll < 0.4:
        odd = rng.random() < 0.5
        shown, clean = phrase(rng, _PARITY, a=a, b=b, p="odd" if odd else "even")
        numbers = [n for n in numbers if n % 2 == odd]
    else:
        shown, clean = phrase(rng, _UP_FROM_ONE if a == 1 and rng.random() < 0.6 else _UP, a=a, b=b)
    return _turn(shown, clean, [str(n) for n in numbers])


def _turn(prompt: str, key: str | None, items: list[str]) -> Turn:
    return say(KIND, prompt, ", ".join(items), key=key)
