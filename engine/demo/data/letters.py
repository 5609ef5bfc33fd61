"""Tasks on the letters of words: case, spelling, counting, backwards, order, mended typos."""

from __future__ import annotations

import random

from engine.demo.data.example import Turn, mentions, phrase, say, typo
from engine.demo.data.text_blocks import phrase_list
from engine.demo.data.words import ANIMALS, CITIES, FIRST_NAMES, FOODS, PRODUCTS, WORDS, any_word

KIND = "letters"

_UPPER = phrase_list("""
Write in uppercase: {x} | Uppercase: {x} | Convert to uppercase: {x} | {x} in capital letters
Make this uppercase: {x} | Write "{x}" in capital letters. | Put this in caps: {x}
Change to upper case: {x}
""")
_LOWER = phrase_list("""
Write in lowercase: {x} | Lowercase: {x} | Convert to lowercase: {x} | {x} in small letters
Make this lowercase: {x} | Write "{x}" in small letters. | Change to lower case: {x}
""")
_TITLE = phrase_list("""
Capitalize each word: {x} | Write in title case: {x} | Title case: {x}
Start every word with a capital letter: {x}
""")
_SPELL = phrase_list("""
Spell {x}. | How do you spell {x}? | Spell the word {x}. | Can you spell {x}? | spell "{x}"
What are the letters of {x}? | Spell out {x}.
""")
_COUNT = phrase_list("""
How many letters are in {x}? | How many letters does {x} have? | Count the letters in {x}.
Number of letters in "{x}"? | How long is the word {x}?
""")
_COUNT_ONE = phrase_list("""
How many {c}s are in {x}? | How many times does {c} occur in {x}? | Count the letter {c} in {x}.
How many "{c}" are there in "{x}"? | How many {c}'s in {x}?
""")
_FIRST = phrase_list("""
What is the first letter of {x}? | First letter of {x}? | What letter does {x} start with?
Which letter does {x} begin with?
""")
_LAST = phrase_list("""
What is the last letter of {x}? | Last letter of {x}? | What letter does {x} end with?
""")
_BACKWARDS = phrase_list("""
Spell {x} backwards. | Reverse the word {x}. | Write {x} backwards. | What is {x} backwards?
Reverse the letters of {x}. | reverse "{x}" | Reverse the string "{x}".
""")
_SORT = phrase_list("""
Sort these words: {x} | Sort alphabetically: {x} | Put these words in alphabetical order: {x}
Order these words from A to Z: {x} | Alphabetical order: {x} | Sort the list: {x}
""")
_MEND = phrase_list("""
Fix the typo: {x} | Correct this: {x} | Correct the spelling: {x} | Fix the spelling of {x}
What is the correct spelling of {x}? | Is "{x}" spelled correctly? | Fix this word: {x}
""")
_CONTINUE = phrase_list("""
Continue the sequence: {x} | What comes next: {x}? | Complete the sequence: {x}, ...
What is the next number: {x}, ? | Next number in {x}? | {x}, ... what comes next?
What number comes next? {x}
""")
_LONG_WORDS = [word for word in WORDS if len(word) >= 5 and word.isalpha()]


def turns(rng: random.Random) -> list[Turn]:
    makers = (_cased, _cased, _spelled, _counted, _ends, _backwards, _sorted, _mended, _continued)
    return [rng.choice(makers)(rng)]


def _word(rng: random.Random) -> str:
    if rng.random() < 0.04:
        return "strawberry"
    return rng.choice(rng.choice((WORDS, WORDS, ANIMALS, FOODS, PRODUCTS, FIRST_NAMES, CITIES)))


def _cased(rng: random.Random) -> Turn:
    text = " ".join(any_word(rng) for _ in range(rng.randint(1, 6)))
    name, change, asks = rng.choice(
        (("upper", str.upper, _UPPER), ("lower", str.lower, _LOWER), ("title", str.title, _TITLE))
    )
    given = text.upper() if name == "lower" else text.lower()
    return say(KIND, phrase(rng, asks, x=given)[0], change(given), key=f"{name} {text}")


def _apart(word: str) -> str:
    return "-".join(word.upper())


def _spelled(rng: random.Random) -> Turn:
    word = _word(rng)
    shown, _ = phrase(rng, _SPELL, x=word)
    return say(KIND, shown, _apart(word), key=f"spell {word}")


def _counted(rng: random.Random) -> Turn:
    """Spelled out first, which makes the counting possible."""
    word = _word(rng)
    if rng.random() < 0.4:
        shown, _ = phrase(rng, _COUNT, x=word)
        answer = f'{_apart(word)}: "{word}" has {len(word)} letters.'
        return say(KIND, shown, answer, key=f"letters of {word}")
    letter = rng.choice(word.lower()) if rng.random() < 0.9 else rng.choice("aeinrst")
    count = word.lower().count(letter)
    shown, _ = phrase(rng, _COUNT_ONE, x=word, c=letter)
    times = "once" if count == 1 else f"{count} times"
    answer = f'{_apart(word)}: the letter "{letter}" occurs {times} in "{word}".'
    return say(KIND, shown, answer, key=f"count {letter} {word}")


def _ends(rng: random.Random) -> Turn:
    word, first = _word(rng), rng.random() < 0.6
    shown, _ = phrase(rng, _FIRST if first else _LAST, x=word)
    letter = (word[0] if first else word[-1]).upper()
    answer = f'The {"first" if first else "last"} letter of "{word}" is {letter}.'
    return say(KIND, shown, answer, key=f"{'first' if first else 'last'} letter {word}")


def _backwards(rng: random.Random) -> Turn:
    word = _word(rng).lower()
    shown, _ = phrase(rng, _BACKWARDS, x=word)
    turned = word[::-1]
    return say(KIND, shown, f'{_apart(turned)}: "{turned}".', key=f"backwards {word}")


def _sorted(rng: random.Random) -> Turn:
    words = rng.sample(rng.choice((WORDS, FOODS, ANIMALS)), rng.randint(3, 5))
    shown, _ = phrase(rng, _SORT, x=", ".join(words))
    return say(KIND, shown, ", ".join(sorted(words)), key=f"sort words {words}")


def _mended(rng: random.Random) -> Turn:
    word = rng.choice(_LONG_WORDS)
    wrong = typo(rng, word)
    if wrong == word:
        return _mended(rng)
    shown, _ = phrase(rng, _MEND, x=wrong)
    return say(KIND, shown, f'The correct spelling is "{word}".', mentions(word), key=wrong)


def _continued(rng: random.Random) -> Turn:
    start, step, count = rng.randint(0, 30), rng.randint(1, 12), rng.randint(3, 5)
    roll = rng.random()
    if roll < 0.2:
        numbers = [rng.randint(1, 9)]
        while len(numbers) <= count:
            numbers.append(numbers[-1] * 2)
    elif roll < 0.35:
        numbers = [start + step * (count - i) for i in range(count + 1)]
    else:
        numbers = [start + step * i for i in range(count + 1)]
    text = ", ".join(map(str, numbers[:-1]))
    shown, _ = phrase(rng, _CONTINUE, x=text)
    return say(KIND, shown, f"The next number is {numbers[-1]}.", key=f"next {text}")
