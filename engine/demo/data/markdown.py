"""Answers with Markdown structure: tables, code blocks, steps with bold words."""

from __future__ import annotations

import random
from collections.abc import Sequence

from engine.demo.data import fact_table
from engine.demo.data.example import Turn, join_words, phrase, say
from engine.demo.data.knowledge_table import MONEY
from engine.demo.data.text_blocks import phrase_list, rows, tables
from engine.demo.data.words import WORDS

KIND = "markdown"

_TABLES = tables("markdown")
_TABLE_OF = phrase_list(_TABLES["table of"])
_TIMES = phrase_list("""
Show the multiplication table of {n} up to {m}. | Make a table of {n} times 1 to {m}.
Times table of {n} up to {m}, please. | Write the {n} times table up to {m} as a Markdown table.
""")
_PRINT = phrase_list(_TABLES["print"])
_LOOP = phrase_list("""
Write a {lang} loop from {a} to {b}. | Show me a loop in {lang} that prints {a} to {b}.
How do I print the numbers {a} to {b} in {lang}? | {lang} loop that prints {a} to {b}, please.
""")
_FUNCTION = phrase_list(_TABLES["function"])
_STEPS_ASK = phrase_list(_TABLES["steps ask"])

_KNOWN = phrase_list(_TABLES["known"])
_CAPITALS = [
    row[:2]
    for row in fact_table.COUNTRIES
    if row[0] in ("France", "Germany", "Italy", "Japan", "Spain", "Egypt", "Canada")
]
_PRINTS = {
    "Python": ("python", 'print("{x}")'),
    "JavaScript": ("javascript", 'console.log("{x}");'),
    "Bash": ("bash", 'echo "{x}"'),
    "Java": ("java", 'System.out.println("{x}");'),
    "C": ("c", '#include <stdio.h>\n\nint main(void) {\n    printf("{x}\\n");\n}'),
    "Rust": ("rust", 'fn main() {\n    println!("{x}");\n}'),
    "Go": ("go", 'fmt.Println("{x}")'),
}
_LOOPS = {
    "Python": ("python", "for i in range({a}, {b} + 1):\n    print(i)"),
    "JavaScript": ("javascript", "for (let i = {a}; i <= {b}; i++) {\n  console.log(i);\n}"),
    "Bash": ("bash", 'for i in $(seq {a} {b}); do\n  echo "$i"\ndone'),
}
_FUNCTIONS = {
    "Python": ("python", "def {name}(a, b):\n    return a {op} b"),
    "JavaScript": ("javascript", "function {name}(a, b) {\n  return a {op} b;\n}"),
}
_OPERATIONS = (
    ("adds", "add", "+"),
    ("subtracts", "subtract", "-"),
    ("multiplies", "multiply", "*"),
    ("divides", "divide", "/"),
)
_STEPS_OF = rows(_TABLES["steps of"])


def turns(rng: random.Random) -> list[Turn]:
    roll = rng.random()
    if roll < 0.22:
        return [_country_table(rng)]
    if roll < 0.34:
        return [_known_table(rng)]
    if roll < 0.42:
        return [_times_table(rng)]
    if roll < 0.72:
        return [_code(rng)]
    return [_steps(rng)]


def table(header: tuple[str, ...], body: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [header, tuple("---" for _ in header), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _country_table(rng: random.Random) -> Turn:
    picked = rng.sample(fact_table.COUNTRIES, rng.randint(2, 5))
    what, header, columns = rng.choice(
        (
            ("capitals", ("Country", "Capital"), (1,)),
            ("continents", ("Country", "Continent"), (2,)),
            ("capitals and continents", ("Country", "Capital", "Continent"), (1, 2)),
        )
    )
    names = [row[0].removeprefix("the ") for row in picked]
    shown, clean = phrase(rng, _TABLE_OF, what=what, all=join_words(names))
    body = [(n, *(row[c] for c in columns)) for n, row in zip(names, picked, strict=True)]
    return say(KIND, shown, table(header, body), key=clean)


def _known_table(rng: random.Random) -> Turn:
    """A table whose rows we choose."""
    what, header, body = rng.choice(
        (
            ("planets", ("Planet", "Place", "Known as"), fact_table.PLANETS),
            ("colours", ("Thing", "Colour"), fact_table.COLOUR_OF[:6]),
            ("animals", ("Animal", "Young", "Sound", "Legs"), fact_table.ANIMALS[:6]),
            ("elements", ("Element", "Symbol", "Number"), fact_table.ELEMENTS[:8]),
            ("capitals", ("Country", "Capital"), _CAPITALS),
            ("currencies", ("Country", "Currency"), [row[:2] for row in MONEY[8:15]]),
        )
    )
    shown, clean = phrase(rng, _KNOWN, what=what)
    return say(KIND, shown, table(header, body), key=f"table {clean}")


def _times_table(rng: random.Random) -> Turn:
    n, m = rng.randint(2, 12), rng.randint(3, 12)
    shown, clean = phrase(rng, _TIMES, n=n, m=m)
    body = [(f"{i} × {n}", str(i * n)) for i in range(1, m + 1)]
    return say(KIND, shown, table(("Sum", "Result"), body), key=clean)


def _code(rng: random.Random) -> Turn:
    roll = rng.random()
    if roll < 0.4:
        lang = rng.choice(list(_PRINTS))
        text = (
            " ".join(rng.choices(WORDS, k=rng.randint(1, 3)))
            if rng.random() < 0.8
            else "Hello, world!"
        )
        syntax, code = _PRINTS[lang]
        shown, clean = phrase(rng, _PRINT, lang=lang, text=f'"{text}"')
        body = code.replace("{x}", text)
    elif roll < 0.75:
        lang = rng.choice(list(_LOOPS))
        a, b = sorted(rng.sample(range(0, 100), 2))
        syntax, code = _LOOPS[lang]
        shown, clean = phrase(rng, _LOOP, lang=lang, a=a, b=b)
        body = code.replace("{a}", str(a)).replace("{b}", str(b))
    else:
        lang = rng.choice(list(_FUNCTIONS))
        does, name, op = rng.choice(_OPERATIONS)
        syntax, code = _FUNCTIONS[lang]
        shown, clean = phrase(rng, _FUNCTION, lang=lang, does=does)
        body = code.replace("{name}", name).replace("{op}", op)
    return say(KIND, shown, f"```{syntax}\n{body}\n```", key=clean)


def _steps(rng: random.Random) -> Turn:
    task, *steps = rng.choice(_STEPS_OF)
    shown, clean = phrase(rng, _STEPS_ASK, task=task)
    numbered = "\n".join(f"{i}. {step}" for i, step in enumerate(steps, 1))
    return say(KIND, shown, f"**How to {task}**\n\n{numbered}", key=clean)
