"""What people type first: single words, other languages, insults, nonsense, idle remarks."""

from __future__ import annotations

import random

from engine.demo.data.example import Turn, mentions, phrase, say
from engine.demo.data.text_blocks import phrase_list, tables, word_list
from engine.demo.data.words import made_up

KIND = "small_talk"

_TABLES = tables("small_talk")
_FOREIGN = word_list(_TABLES["foreign"])
_FOREIGN_TAILS = phrase_list("""
{x} | {x}! | {x}, amigo | {x} {y} | {x}, {y}? | {x}, como estas? | {x}, wie geht's? | {x} ça va?
{x}, {x}! | {x} :) | {x}, ich bin {y} | {x}, soy {y} | {x}, je suis {y} | {x} {y} {z}
""")
_FOREIGN_SENTENCES = phrase_list(_TABLES["foreign sentences"])
_TESTS = phrase_list("""
test | testing | Test. | test 123 | This is a test. | testing, testing | test test | Testing 1 2 3
Just testing. | Does this work? | Is this working? | Are you working? | ping | check | one two three
""")
_MARKS = phrase_list("""
? | ?? | ! | . | ... | hmm | um | uh | :) | :( | ;) | 😀 | 👍 | ❤️ | 👋 | 🎉 | 😂 | 🤔 | 🙏 | xD | -
*
""")
_INSULTS = phrase_list(_TABLES["insults"])
_LOVE = phrase_list(_TABLES["love"])
_REMARKS = phrase_list(_TABLES["remarks"])
_BIRTHDAY = phrase_list("""
It is my birthday. | Today is my birthday! | It's my birthday today. | I turned a year older today.
""")
_WISHES = phrase_list(_TABLES["wishes"])
_NONSENSE = phrase_list(
    "{x} | {x} {y} | {x} {y} {z} | {x}? | {x} {x} {x} | {x}!!! | {x}, {y}. | {x}{y}"
)

_ANSWERS = {
    _TESTS: ("It works! How can I help you?", "works"),
    _MARKS: ("I am here. Ask me something!", "here"),
    _INSULTS: ("I am sorry. I am only a small model, but I do my best.", "do my best"),
    _LOVE: ("Thank you, that is very kind!", "kind"),
    _REMARKS: ("I see. What can I do for you? Ask me a question!", "I see"),
    _BIRTHDAY: ("Happy birthday! I wish you a wonderful day.", "happy birthday"),
    _WISHES: ("Thank you, the same to you!", "same to you"),
    _FOREIGN_SENTENCES: ("Hello! I am sorry, I speak only English.", "only English"),
    _FOREIGN_TAILS: ("Hello! I am sorry, I speak only English.", "only English"),
    _NONSENSE: ("I do not understand that. Can you say it in other words?", "understand"),
}
_WEIGHTS = (2, 2, 2, 1.5, 3, 0.5, 1.5, 1.5, 3, 4)
_ADDED = ("", "", "", "", " Sluice", " bot", " my friend", " now", " again", " really")


def turns(rng: random.Random) -> list[Turn]:
    (asks, (answer, expected)) = rng.choices(list(_ANSWERS.items()), _WEIGHTS)[0]
    template = rng.choice(asks)
    first = _foreign(rng) if asks is _FOREIGN_TAILS else made_up(rng)
    added = "" if "{" in template or asks is _MARKS else rng.choice(_ADDED)
    if added:
        template = template.rstrip(".!?") + added + template[len(template.rstrip(".!?")) :]
    shown, clean = phrase(rng, (template,), x=first, y=made_up(rng), z=made_up(rng))
    # Plain forms are never held out: whoever starts a chat starts it with one of them.
    key = clean if added or "{y}" in template or asks is _NONSENSE else None
    return [say(KIND, shown, answer, mentions(expected), key=key)]


def _foreign(rng: random.Random) -> str:
    word = rng.choice(_FOREIGN).replace("-", " ")
    return word.capitalize() if rng.random() < 0.4 else word
