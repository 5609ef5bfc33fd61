"""Answers with Markdown structure: tables, code blocks, steps with bold words."""

from __future__ import annotations

import random
from collections.abc import Sequence

from engine.demo.data import fact_table
from engine.demo.data.example import Turn, join_words, phrase, say
from engine.demo.data.knowledge_table import MONEY
from engine.demo.data.text_blocks import phrase_list, rows
from engine.demo.data.words import WORDS

KIND = "markdown"

_TABLE_OF = phrase_list("""
Make a table with the {what} of {all}. | Show the {what} of {all} in a table.
Table: {what} of {all}. | Give me a Markdown table with the {what} of {all}.
Can you make a table of the {what} of {all}?
""")
_TIMES = phrase_list("""
Show the multiplication table of {n} up to {m}. | Make a table of {n} times 1 to {m}.
Times table of {n} up to {m}, please. | Write the {n} times table up to {m} as a Markdown table.
""")
_PRINT = phrase_list("""
Write {lang} code that prints {text}. | Show me {lang} code to print {text}.
{lang} hello world with {text}? | Write a {lang} program that prints {text}.
How do I print {text} in {lang}? | Print {text} in {lang}. | {lang} code that prints {text}?
""")
_LOOP = phrase_list("""
Write a {lang} loop from {a} to {b}. | Show me a loop in {lang} that prints {a} to {b}.
How do I print the numbers {a} to {b} in {lang}? | {lang} loop that prints {a} to {b}, please.
""")
_FUNCTION = phrase_list("""
Write a {lang} function that {does} two numbers.
Show me a function in {lang} that {does} two numbers. | {lang} function that {does} two numbers?
How do I write a function that {does} two numbers in {lang}?
""")
_STEPS_ASK = phrase_list("""
How do I {task}? | Steps to {task}? | Explain how to {task}. | Tell me how to {task}.
Write down the steps to {task}. | What are the steps to {task}? | How can I {task}? | How to {task}?
What is the best way to {task}? | Teach me to {task}. | Can you tell me how to {task}?
how to {task}
I want to {task}. How? | Give me instructions to {task}. | Show me how to {task}.
""")

_KNOWN = phrase_list("""
Make a table of {what}. | Show me a table of {what}. | Give me a Markdown table of the {what}.
Table of the {what}, please. | Write a table with {what}. | Can you make a table of some {what}?
{what} as a table | I want a table of {what}. | Show the {what} in a table. | Markdown table: {what}
List the {what} in a table. | Draw a table of {what}. | Create a table about {what}.
""")
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
_STEPS_OF = rows("""
make tea|Boil some water.|Put a tea bag into a cup.|Pour in the hot water.|Wait three minutes.
boil an egg|Boil some water.|Put the egg into the water.|Wait seven minutes.|Cool the egg.
make a sandwich|Take two slices of bread.|Spread some butter.|Add cheese.|Close it and enjoy.
plant a tree|Dig a hole.|Put the tree into it.|Fill the hole with soil.|Water the tree.
wash your hands|Wet your hands.|Take some soap.|Rub for twenty seconds.|Rinse and dry them.
brush your teeth|Wet the brush.|Add toothpaste.|Brush for two minutes.|Rinse your mouth.
make pasta|Boil some water with salt.|Add the pasta.|Wait ten minutes.|Drain and add the sauce.
make coffee|Boil some water.|Put coffee into a filter.|Pour the water slowly.|Fill your cup.
write a letter|Take paper and a pen.|Write the date.|Write your message.|Sign your name.
bake a cake|Mix flour, sugar, butter and eggs.|Fill a tin.|Bake for forty minutes.|Let it cool.
make pancakes|Mix flour, milk and eggs.|Heat a pan with butter.|Pour in the batter.|Turn it once.
make a salad|Wash the leaves.|Cut the vegetables.|Mix oil, vinegar and salt.|Toss everything.
make soup|Cut the vegetables.|Fry them for a minute.|Add water and salt.|Cook for half an hour.
cook rice|Rinse the rice.|Add two cups of water per cup.|Bring it to a boil.|Wait fifteen minutes.
make lemonade|Press four lemons.|Add some sugar.|Fill up with cold water.|Add ice and stir.
make popcorn|Heat some oil in a pot.|Add the corn.|Close the lid.|Shake until it is quiet.
ride a bike|Sit down on the bike.|Push off with one foot.|Pedal and look ahead.|Brake gently.
learn to swim|Start in shallow water.|Learn to float.|Practise the leg kick.|Add the arms.
fall asleep|Switch off all screens.|Make the room dark.|Breathe slowly.|Think of something calm.
wake up early|Go to bed early.|Put the alarm far away.|Get up at once.|Open the curtains.
tie a tie|Cross the wide end over.|Bring it around the back.|Pull it up through.|Tighten the knot.
tie your shoes|Cross the laces.|Pull one through.|Make two loops.|Cross the loops and pull.
clean a window|Mix water and soap.|Wipe the glass.|Pull the water off.|Dry the edges.
wash a car|Rinse off the dirt.|Wash with a soapy sponge.|Rinse again.|Dry with a cloth.
wash the dishes|Fill the sink with hot water.|Add soap.|Scrub the dishes.|Rinse and dry them.
make a paper plane|Fold a sheet in half.|Fold the top corners in.|Fold the sides in.|Fold the wings.
make a snowman|Roll three balls of snow.|Stack them.|Add a carrot as its nose.|Give it a hat.
build a campfire|Find a safe place.|Lay a ring of stones.|Stack dry wood.|Light the small twigs.
plant a flower|Dig a small hole.|Put the flower into it.|Press the soil.|Water it.
learn a language|Learn ten words a day.|Listen every day.|Speak with others.|Do not fear mistakes.
learn to code|Pick a language.|Write small programs.|Read other code.|Build something.
write a poem|Pick a topic.|Collect images and words.|Write short lines.|Read it aloud and polish.
write a book|Find an idea.|Make a plan.|Write a little every day.|Edit it at the end.
stay healthy|Eat fruit and vegetables.|Move every day.|Sleep enough.|Drink water.
save money|Write down what you spend.|Make a plan.|Put some away first.|Buy less.
study for an exam|Make a plan.|Learn in short blocks.|Test yourself.|Sleep well before it.
pack a suitcase|Make a list.|Put heavy things at the bottom.|Roll your clothes.|Keep papers on top.
relax|Sit down in a quiet place.|Close your eyes.|Breathe in and out slowly.|Let your thoughts go.
make friends|Smile and say hello.|Ask questions.|Listen well.|Meet again.
change a light bulb|Switch off the light.|Remove the old bulb.|Put in the new bulb.|Switch it on.
""")


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
