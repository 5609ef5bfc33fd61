"""Is a remark positive or negative? Short labels, as a grammar of choices would force them."""

from __future__ import annotations

import random

from engine.demo.data.example import Turn, fill, mentions, phrase, say
from engine.demo.data.text_blocks import phrase_list, word_list
from engine.demo.data.words import FOODS, PRODUCTS

KIND = "sentiment"
_GOOD = word_list("""
great wonderful excellent amazing fantastic perfect lovely good nice beautiful brilliant superb
""")
_BAD = word_list("""
terrible awful bad horrible poor disappointing useless boring ugly broken dreadful annoying
""")
_VERBS = {
    "positive": ("love", "like", "enjoyed", "recommend"),
    "negative": ("hate", "dislike", "regret", "returned"),
}
_REMARKS = phrase_list("""
The {thing} is {word}. | What a {word} {thing}! | I {verb} this {thing}, it is {word}.
This {thing} was really {word}. | I {verb} the {thing}. | The {thing} was {word} and I {verb} it.
My new {thing} is so {word}!
""")
_ASK = (
    "Is this positive or negative? {x}",
    "Positive or negative: {x}",
    "What is the sentiment of this review? {x}",
    'Is "{x}" positive or negative?',
    "Classify as positive or negative: {x}",
    "{x}\nPositive or negative?",
    "Sentiment: {x}",
    "Classify the sentiment: {x}",
)


def turns(rng: random.Random) -> list[Turn]:
    label = rng.choice(("positive", "negative"))
    values = {
        "thing": rng.choice(
            PRODUCTS + [food.rstrip("s") for food in FOODS] + ["movie", "hotel", "song", "trip"]
        ),
        "word": rng.choice(_GOOD if label == "positive" else _BAD),
        "verb": rng.choice(_VERBS[label]),
    }
    remark = fill(rng.choice(_REMARKS), values)
    shown, _ = phrase(rng, _ASK, x=remark)
    return [say(KIND, shown, label, mentions(label), key=remark)]
