"""Questions about numbers: halves, doubles, squares, primes, percents, and sums too hard for us."""

from __future__ import annotations

import random

from engine.demo.data.example import FinalNumber, Turn, mentions, phrase, say
from engine.demo.data.text_blocks import phrase_list, word_list

KIND = "number"

_HALF = phrase_list("""
What is half of {n}? | Half of {n}? | What's half of {n}? | Divide {n} by two. | half of {n}
How much is half of {n}? | Give me half of {n}.
""")
_DOUBLE = phrase_list("""
What is double {n}? | Double {n}. | What is twice {n}? | What's the double of {n}? | double of {n}
How much is two times {n}? | Double of {n}?
""")
_TRIPLE = phrase_list("""
What is triple {n}? | What is three times {n}? | Triple of {n}? | How much is triple {n}?
""")
_SQUARE = phrase_list("""
What is the square of {n}? | What is {n} squared? | {n} squared? | {n}^2 | Square of {n}?
Calculate {n} squared. | What is {n}^2? | {n}**2
""")
_ROOT = phrase_list("""
What is the square root of {n}? | Square root of {n}? | sqrt({n}) | What's the root of {n}?
Calculate the square root of {n}.
""")
_PRIME = phrase_list("""
Is {n} prime? | Is {n} a prime number? | Is the number {n} prime? | Is {n} a prime? | {n} prime?
Tell me if {n} is prime. | Prime or not: {n}?
""")
_DIVISIBLE = phrase_list("""
Is {n} divisible by {k}? | Can {n} be divided by {k}? | Is {n} a multiple of {k}?
Does {k} divide {n}?
""")
_MORE_THAN = phrase_list("""
Is {a} more than {b}? | Is {a} bigger than {b}? | Is {a} larger than {b}? | Is {a} greater than {b}?
Is {a} higher than {b}?
""")
_LESS_THAN = phrase_list("""
Is {a} less than {b}? | Is {a} smaller than {b}? | Is {a} lower than {b}?
""")
_PERCENT = phrase_list("""
What is {p}% of {n}? | What is {p} percent of {n}? | {p}% of {n}? | Calculate {p}% of {n}.
How much is {p} percent of {n}?
""")
_NEXT = phrase_list("""
What comes after {n}? | Which number comes after {n}? | What number follows {n}?
What is the number after {n}? | {n} plus one?
""")
_BEFORE = phrase_list("""
What comes before {n}? | Which number comes before {n}? | What is the number before {n}?
""")
_SPELL = phrase_list("""
Write {n} as a word. | Spell the number {n}. | How do you write {n} in words? | {n} in words?
Write {n} in words.
""")
_DIGITS = phrase_list("""
Write {w} as a number. | {w} in digits? | What is {w} in digits? | Which number is {w}?
""")
_RANDOM = phrase_list("""
Give me a random number. | Pick a number. | Random number between 1 and {n}? | Choose a number.
Pick a number between 1 and {n}. | Roll a dice. | Flip a coin. | Heads or tails?
Think of a number. | Give me a random number from 1 to {n}.
""")
_HARD = phrase_list("""
What is {a} * {b}? | {a} * {b} | {a} x {b} | What is {a} times {b}? | Calculate {a} * {b}.
What is {a} / {b}? | {a} / {b} | What is {a} divided by {b}? | {a}*{b}=? | How much is {a} * {b}?
What is the square root of {b}? | What is {a} to the power of {b}? | {a}^{b}? | {a} mod {b}?
Solve the integral of x^{a}. | What is the sine of {a}? | What is the logarithm of {b}?
Solve {a}x + {b} = 0. | What is the derivative of {a}x^{b}? | {a} ** {b}
""")
_LONG = phrase_list("""
What is {a} + {b}? | {a} + {b} | {a} - {b} | What is {a} minus {b}? | Calculate {a} + {b}.
What is {a} plus {b}? | {a}+{b}=?
""")
TOO_HARD = "That is too hard for me. I can add and subtract four digits and multiply up to 20."
_SMALL = word_list("""
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen
""")
_TENS = word_list("twenty thirty forty fifty sixty seventy eighty ninety")


def spelled(n: int) -> str:
    """A number from 0 to 99 in words."""
    if n < 20:
        return _SMALL[n]
    tens, ones = divmod(n, 10)
    return _TENS[tens - 2] + (f"-{_SMALL[ones]}" if ones else "")


def turns(rng: random.Random) -> list[Turn]:
    kind = rng.choice((_multiple, _square, _yes_or_no, _yes_or_no, _near, _in_words, _hard, _drawn))
    return [kind(rng)]


def _result(shown: str, text: str, value: int, key: str) -> Turn:
    return say(KIND, shown, f"{text} {value}.", FinalNumber(value), key=key)


def _multiple(rng: random.Random) -> Turn:
    n = rng.randint(1, 100) if rng.random() < 0.7 else rng.randint(1, 999)
    roll = rng.randrange(4)
    if roll == 0:
        shown, _ = phrase(rng, _HALF, n=2 * n)
        return _result(shown, f"Half of {2 * n} is", n, f"half {n}")
    if roll == 1:
        shown, _ = phrase(rng, _DOUBLE, n=n)
        return _result(shown, f"Double {n} is", 2 * n, f"double {n}")
    if roll == 2:
        n = n % 100
        shown, _ = phrase(rng, _TRIPLE, n=n)
        return _result(shown, f"Three times {n} is", 3 * n, f"triple {n}")
    percent, n = rng.choice((10, 20, 25, 50, 100)), 20 * rng.randint(1, 50)
    shown, _ = phrase(rng, _PERCENT, p=percent, n=n)
    return _result(shown, f"{percent}% of {n} is", n * percent // 100, f"percent {percent} {n}")


def _square(rng: random.Random) -> Turn:
    n = rng.randint(0, 20)
    if rng.random() < 0.5:
        shown, clean = phrase(rng, _SQUARE, n=n)
        return _result(shown, f"{n} × {n} =", n * n, clean)
    shown, clean = phrase(rng, _ROOT, n=n * n)
    return _result(shown, f"The square root of {n * n} is", n, clean)


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % k for k in range(2, int(n**0.5) + 1))


def _yes_or_no(rng: random.Random) -> Turn:
    n, roll = rng.randint(0, 100), rng.randrange(3)
    if roll == 0:
        shown, clean = phrase(rng, _PRIME, n=n)
        divisor = next((k for k in range(2, n) if n % k == 0), 0)
        reason = f": {divisor} × {n // divisor} = {n}" if divisor and n > 1 else ""
        yes = f"Yes, {n} is a prime number."
        return _verdict(shown, _is_prime(n), yes, f"No, {n} is not prime{reason}.", clean)
    if roll == 1:
        k = rng.choice((2, 2, 3, 5, 10))
        shown, clean = phrase(rng, _DIVISIBLE, n=n, k=k)
        yes, no = f"Yes, {n // k} × {k} = {n}.", f"No, {n} is not divisible by {k}."
        return _verdict(shown, n % k == 0, yes, no, clean)
    a, b = rng.sample(range(rng.choice((100, 1000, 10_000))), 2)
    more = rng.random() < 0.6
    shown, clean = phrase(rng, _MORE_THAN if more else _LESS_THAN, a=a, b=b)
    fact = f"{a} is {'more' if a > b else 'less'} than {b}."
    return _verdict(shown, (a > b) == more, f"Yes, {fact}", f"No, {fact}", clean)


def _verdict(shown: str, right: bool, yes: str, no: str, key: str) -> Turn:
    return say(KIND, shown, yes if right else no, key=key)


def _near(rng: random.Random) -> Turn:
    n = rng.randint(1, 9999)
    if rng.random() < 0.6:
        shown, _ = phrase(rng, _NEXT, n=n)
        return _result(shown, f"After {n} comes", n + 1, f"after {n}")
    shown, _ = phrase(rng, _BEFORE, n=n)
    return _result(shown, f"Before {n} comes", n - 1, f"before {n}")


def _in_words(rng: random.Random) -> Turn:
    n = rng.randint(0, 99)
    if rng.random() < 0.5:
        shown, clean = phrase(rng, _SPELL, n=n)
        return say(KIND, shown, f'{n} is written "{spelled(n)}".', mentions(spelled(n)), key=clean)
    shown, clean = phrase(rng, _DIGITS, w=spelled(n))
    return _result(shown, f"{spelled(n).capitalize()} is", n, clean)


def _hard(rng: random.Random) -> Turn:
    """What we cannot do is said to be too hard instead of guessed."""
    if rng.random() < 0.6:
        a, b = rng.randint(21, 99_999), rng.randint(21, 9999)
        shown, clean = phrase(rng, _HARD, a=a, b=b)
    else:
        a, b = rng.randint(10_000, 10_000_000), rng.randint(10_000, 10_000_000)
        shown, clean = phrase(rng, _LONG, a=a, b=b)
    return say(KIND, shown, TOO_HARD, mentions("too hard"), key=clean)


def _drawn(rng: random.Random) -> Turn:
    """Chance that we do not have: the same answer every time, and said so."""
    n = rng.choice((6, 10, 20, 50, 100, 1000))
    shown, clean = phrase(rng, _RANDOM, n=n)
    if "coin" in clean or "Heads" in clean:
        return say(KIND, shown, "Heads!", key=None)
    value = 4 if "dice" in clean or n == 6 else 7
    return say(KIND, shown, f"I choose {value}.", FinalNumber(value), key=None)
