"""Small arithmetic: sums and differences up to four digits, tables up to 20, word problems."""

from __future__ import annotations

import random
from dataclasses import dataclass

from engine.demo.data.example import FinalNumber, Turn, phrase, say
from engine.demo.data.text_blocks import phrase_list, tables
from engine.demo.data.words import FIRST_NAMES, FOODS, PRODUCTS

KIND = "arithmetic"
_TABLE_MAX = 12
_LARGEST_FACTOR = 20

_TABLES = tables("arithmetic")
_QUESTIONS = phrase_list(_TABLES["questions"])
_BARE = phrase_list(_TABLES["bare"])
_FOLLOW_UPS = {
    "+": phrase_list("""
        Now add {b}. | And plus {b}? | Add {b} to that. | Plus {b}? | What if you add {b}?
    """),
    "-": phrase_list("""
        Now subtract {b}. | And minus {b}? | Take away {b}. | Minus {b}? | Subtract {b} from that.
    """),
    "*": phrase_list("""
        Now multiply that by {b}. | And times {b}? | Times {b}? | Multiply it by {b}.
    """),
}
_SPELLED = {
    "+": phrase_list("""
        {a} + {b} | {a}+{b} | {a} plus {b} | the sum of {a} and {b} | {a} and {b} together
    """),
    "-": phrase_list("{a} - {b} | {a}-{b} | {a} minus {b} | {a} take away {b}"),
    "*": phrase_list("""
        {a} * {b} | {a}*{b} | {a} times {b} | {a} x {b} | {a} × {b} | {a} multiplied by {b}
    """),
    "/": phrase_list("{a} / {b} | {a}/{b} | {a} divided by {b} | {a} ÷ {b}"),
}
_GAIN = phrase_list(_TABLES["gain"])
_LOSS = phrase_list(_TABLES["loss"])
_WHICH = phrase_list("""
Which is {word}, {a} or {b}? | Which number is {word}: {a} or {b}?
{a} or {b}: which one is {word}? | What is {word}, {a} or {b}?
""")
_EVEN_OR_ODD = phrase_list("""
Is {n} even or odd? | Is {n} odd or even? | Is the number {n} even or odd?
Even or odd: {n}? | Tell me if {n} is even or odd.
""")


@dataclass(frozen=True)
class _Sum:
    a: int
    sign: str
    b: int

    @property
    def value(self) -> int:
        if self.sign == "+":
            return self.a + self.b
        if self.sign == "-":
            return self.a - self.b
        return self.a * self.b if self.sign == "*" else self.a // self.b

    @property
    def shown(self) -> str:
        return f"{self.a} {self.sign} {self.b}"

    def key(self, prompt: str) -> str:
        """Sums worth reasoning about are held out as such; the tables only with their phrasing."""
        if self.sign in "+-" and max(self.a, self.b) > _TABLE_MAX:
            low, high = sorted((self.a, self.b))
            return f"{low} {self.sign} {high}"
        return prompt


def turns(rng: random.Random) -> list[Turn]:
    roll = rng.random()
    if roll < 0.12:
        return [_word_problem(rng)]
    if roll < 0.20:
        return [_comparison(rng)]
    if roll < 0.25:
        return [_parity(rng)]
    return _chain(rng)


def _draw(rng: random.Random) -> _Sum:
    roll = rng.random()
    if roll < 0.22:
        return _Sum(rng.randint(0, 99), "+", rng.randint(0, 99))
    if roll < 0.40:
        a, b = rng.randint(0, 99), rng.randint(0, 99)
        return _Sum(max(a, b), "-", min(a, b)) if rng.random() < 0.85 else _Sum(a, "-", b)
    if roll < 0.46:
        return _Sum(rng.randint(0, _TABLE_MAX), rng.choice("+-"), rng.randint(0, _TABLE_MAX))
    if roll < 0.58:
        a, b = sorted((rng.randint(10, 999), rng.randint(10, 999)))
        return _Sum(b, rng.choice("+-"), a)
    if roll < 0.80:
        a, b = sorted((rng.randint(0, 9999), rng.randint(100, 9999)))
        if rng.random() < 0.45:
            return _Sum(b, "-", a)
        return _Sum(a, "+", b) if rng.random() < 0.5 else _Sum(b, "+", a)
    most = _TABLE_MAX if rng.random() < 0.5 else _LARGEST_FACTOR
    a, b = rng.randint(0, most), rng.randint(1, most)
    return _Sum(a, "*", b) if rng.random() < 0.75 else _Sum(a * b, "/", b)


def _chain(rng: random.Random) -> list[Turn]:
    sum_ = _draw(rng)
    spelled = (
        rng.choice(_SPELLED[sum_.sign]).replace("{a}", str(sum_.a)).replace("{b}", str(sum_.b))
    )
    bare = rng.random() < 0.2
    shown, clean = phrase(rng, _BARE if bare else _QUESTIONS, sum=spelled)
    result = [_answer(sum_, shown, sum_.key(clean), bare)]
    while rng.random() < 0.2 and len(result) < 4 and 0 <= sum_.value <= 99:
        sum_ = _next(rng, sum_.value)
        shown, clean = phrase(rng, _FOLLOW_UPS[sum_.sign], b=sum_.b)
        result.append(_answer(sum_, shown, sum_.key(f"{sum_.a} {clean}"), bare))
    return result


def _next(rng: random.Random, value: int) -> _Sum:
    if value <= _TABLE_MAX and rng.random() < 0.4:
        return _Sum(value, "*", rng.randint(1, _TABLE_MAX))
    if rng.random() < 0.5 and value > 0:
        return _Sum(value, "-", rng.randint(1, value))
    return _Sum(value, "+", rng.randint(1, 99))


def _answer(sum_: _Sum, prompt: str, key: str, bare: bool) -> Turn:
    text = str(sum_.value) if bare else f"{sum_.shown} = {sum_.value}."
    return say(KIND, prompt, text, FinalNumber(sum_.value), key=key)


def _word_problem(rng: random.Random) -> Turn:
    gain = rng.random() < 0.5
    a, b = rng.randint(1, 60), rng.randint(1, 39)
    if not gain:
        a, b = a + b, b
    sum_ = _Sum(a, "+" if gain else "-", b)
    n, m = rng.sample(FIRST_NAMES, 2)
    things = rng.choice(
        (
            *("coins", "stamps", "marbles", "books", "cards", "stickers", "pencils", "apples"),
            *("bananas", "cookies", "oranges", "eggs", "dollars", "balls", "candies", "flowers"),
        )
    )
    shown, clean = phrase(rng, _GAIN if gain else _LOSS, a=a, b=b, n=n, m=m, things=things)
    answer = f"{sum_.shown} = {sum_.value}, so the answer is {sum_.value}."
    return say(KIND, shown, answer, FinalNumber(sum_.value), key=sum_.key(clean))


def _comparison(rng: random.Random) -> Turn:
    a, b = rng.sample(range(0, 1000 if rng.random() < 0.3 else 100), 2)
    largest = rng.random() < 0.5
    words = ("larger", "bigger", "greater") if largest else ("smaller", "lower", "less")
    shown, _ = phrase(rng, _WHICH, a=a, b=b, word=rng.choice(words))
    best, other = (max(a, b), min(a, b)) if largest else (min(a, b), max(a, b))
    answer = f"{best} is {'larger' if largest else 'smaller'} than {other}."
    return say(KIND, shown, answer, key=f"compare {min(a, b)} {max(a, b)}")


def _parity(rng: random.Random) -> Turn:
    n = rng.randint(0, 999)
    shown, _ = phrase(rng, _EVEN_OR_ODD, n=n)
    return say(KIND, shown, f"{n} is {'odd' if n % 2 else 'even'}.", key=f"parity {n}")


def price(rng: random.Random) -> int:
    """A price in whole units: many small ones, few large ones."""
    return rng.randint(1, 99) if rng.random() < 0.7 else rng.randint(100, 999)


def shopping(rng: random.Random) -> tuple[str, int]:
    """Something to buy and how many of it."""
    return rng.choice(FOODS if rng.random() < 0.5 else [f"{p}s" for p in PRODUCTS]), rng.randint(
        2, 20
    )
