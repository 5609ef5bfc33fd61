"""Lists of things, as Markdown, and one more item when asked."""

from __future__ import annotations

import random

from engine.demo.data.example import ListsFrom, Turn, phrase, say
from engine.demo.data.text_blocks import phrase_list, word_list
from engine.demo.data.words import ANIMALS, COLOURS, JOBS

KIND = "list"

CATEGORIES: dict[str, list[str]] = {
    "fruits": word_list("apple banana cherry grape lemon mango orange peach pear plum strawberry"),
    "vegetables": word_list("""
        carrot potato onion tomato cabbage spinach pea bean garlic pepper leek
    """),
    "animals": ANIMALS[:24],
    "colours": COLOURS[:11],
    "jobs": JOBS[:20],
    "planets": ["Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"],
    "countries": word_list("""
        France Spain Italy Japan Brazil Canada Egypt India Kenya Norway Peru Poland
    """),
    "cities": word_list("""
        Paris London Berlin Madrid Rome Vienna Tokyo Cairo Lima Oslo Sydney Toronto
    """),
    "sports": word_list("""
        football tennis basketball swimming running cycling boxing hockey golf rugby
    """),
    "instruments": word_list("""
        piano guitar violin flute drum trumpet cello harp saxophone clarinet
    """),
    "drinks": ["water", "tea", "coffee", "milk", "juice", "lemonade", "cocoa", "soda", "smoothie"],
    "flowers": ["rose", "tulip", "lily", "daisy", "sunflower", "orchid", "violet", "iris", "poppy"],
    "trees": ["oak", "pine", "birch", "maple", "willow", "beech", "elm", "cedar", "palm"],
    "birds": ["eagle", "owl", "swan", "duck", "crow", "robin", "parrot", "penguin", "sparrow"],
    "tools": word_list("hammer saw drill wrench screwdriver pliers ladder shovel axe"),
    "clothes": ["shirt", "coat", "hat", "scarf", "dress", "jacket", "sweater", "sock", "glove"],
    "vehicles": ["car", "bus", "train", "bicycle", "truck", "boat", "plane", "tram", "scooter"],
    "languages": word_list("English French Spanish German Italian Chinese Arabic Russian Hindi"),
    "pieces of furniture": word_list("chair table bed sofa desk shelf lamp stool wardrobe"),
    "school subjects": word_list("""
        mathematics history biology chemistry physics geography music art
    """),
}
_NUMBER_WORDS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven"}
_ASK = phrase_list("""
List {n} {things}. | Give me {n} {things}. | Name {n} {things}. | Write a list of {n} {things}.
Tell me {n} {things}. | Can you name {n} {things}? | I need {n} {things}. | {n} {things}, please.
Show me a list of {n} {things}. | Make a list of {n} {things}. | What are {n} {things}?
""")
_NUMBERED = phrase_list("""
Give me a numbered list of {n} {things}. | Write {n} {things} as a numbered list.
Number {n} {things}. | List {n} {things} with numbers.
""")
_MORE = ("One more.", "Give me one more.", "Another one, please.", "And one more?", "Add one more.")


def turns(rng: random.Random) -> list[Turn]:
    things = rng.choice(list(CATEGORIES))
    members = CATEGORIES[things]
    count, start = rng.randint(2, 7), rng.randrange(len(members))
    picked = [members[(start + i) % len(members)].capitalize() for i in range(count + 1)]
    numbered = rng.random() < 0.3
    shown_count = rng.choice((str(count), _NUMBER_WORDS[count]))
    shown, clean = phrase(rng, _NUMBERED if numbered else _ASK, n=shown_count, things=things)
    lead = rng.choice(("", "", f"Here are {_NUMBER_WORDS[count]} {things}:\n\n"))
    allowed = frozenset(m.lower() for m in members)
    text = lead + "\n".join(_line(i, item, numbered) for i, item in enumerate(picked[:count]))
    result = [say(KIND, shown, text, ListsFrom(allowed, count), key=clean)]
    if rng.random() < 0.2 and count < len(members):
        left = allowed - {item.lower() for item in picked[:count]}
        more = _line(count, picked[count], numbered)
        key = f"{things} {picked[:count]} more"
        result.append(say(KIND, phrase(rng, _MORE)[0], more, ListsFrom(left, 1), key=key))
    return result


def _line(index: int, item: str, numbered: bool) -> str:
    return f"{index + 1}. {item}" if numbered else f"- {item}"
