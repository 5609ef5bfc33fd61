"""What things are, who people were, why it is so: one sentence for each row of the tables."""

from __future__ import annotations

import random
from collections.abc import Sequence

from engine.demo.data import knowledge_table as table
from engine.demo.data.example import Turn, phrase, say
from engine.demo.data.text_blocks import phrase_list

KIND = "knowledge"

_WHAT = phrase_list("""
What is {x}? | What is {x}? | What's {x}? | Explain {x}. | Define {x}. | Tell me about {x}.
Can you explain {x}? | What does {x} mean? | Explain what {x} is. | What exactly is {x}?
Give me a definition of {x}. | {x}? | Describe {x}. | Explain {x} to me. | what is {x} exactly
Do you know what {x} is? | Tell me what {x} is. | {x}, what is that? | Explain {x} in one sentence.
I want to learn about {x}. | How would you explain {x}? | Explain {x} to a child.
""")
_WHO = phrase_list("""
Who was {x}? | Who is {x}? | Tell me about {x}. | Who's {x}? | Do you know {x}? | {x}?
What do you know about {x}? | Who exactly was {x}? | Explain who {x} was. | Have you heard of {x}?
What is {x} known for? | Why is {x} famous? | Can you tell me who {x} is?
""")
_WHY = phrase_list("""
Why {x}? | Why {x}? | why {x} | Do you know why {x}? | Tell me: why {x}? | Explain why {x}.
Can you explain why {x}? | I wonder, why {x}?
""")
_ASKED = phrase_list("""
{x} | {x} | {x} | {x} | Tell me: {x} | Question: {x} | Do you know this? {x} | Quick question: {x}
I wonder: {x} | My question is: {x} | Answer this: {x} | Can you tell me? {x}
""")
_MORE = phrase_list("And {x}? | What about {x}? | And what is {x}? | How about {x}?")


def turns(rng: random.Random) -> list[Turn]:
    roll = rng.random()
    if roll < 0.42:
        return _explain(rng, table.DEFINITIONS, _WHAT)
    if roll < 0.6:
        return _explain(rng, table.PEOPLE, _WHO)
    if roll < 0.7:
        return _explain(rng, table.REASONS, _WHY)
    question, answer = rng.choice(table.QUESTIONS)
    # The question is in the templates themselves, so that it gets typos too.
    templates = [template.replace("{x}", question) for template in _ASKED]
    return [_say(*phrase(rng, templates), answer)]


def _explain(
    rng: random.Random, rows: Sequence[tuple[str, ...]], templates: Sequence[str]
) -> list[Turn]:
    count = 2 if templates is not _WHY and rng.random() < 0.12 else 1
    result = []
    for i, (term, answer) in enumerate(rng.sample(rows, count)):
        bare = term.removeprefix("a ").removeprefix("an ").removeprefix("the ")
        name = rng.choice((term, term, bare, term.lower()))
        forms = [form.replace("{x}", name) for form in (_MORE if i else templates)]
        shown, clean = phrase(rng, forms)
        shown = shown[0].upper() + shown[1:] if rng.random() < 0.3 else shown
        result.append(_say(shown, clean, answer))
    return result


def _say(shown: str, clean: str, answer: str) -> Turn:
    return say(KIND, shown, answer, key=clean)
