"""Jokes, riddles, facts and kind words, as tables."""

from __future__ import annotations

from engine.demo.data.text_blocks import phrase_list, rows, tables

_TABLES = tables("fun")
JOKES = phrase_list(_TABLES["jokes"])

RIDDLES = rows(_TABLES["riddles"])

FACTS = phrase_list(_TABLES["facts"])

COMPLIMENTS = phrase_list(_TABLES["compliments"])

QUOTES = phrase_list(_TABLES["quotes"])

# Lines about a topic {x}; a haiku's have about 5, 7 and 5 syllables.
HAIKU = (
    phrase_list("""
    Quiet {x} at dawn | I dream of {x} | A touch of {x} now | The {x} is waiting
    Soft light on the {x}
    """),
    phrase_list("""
    The world is holding its breath | A gentle wind passes by | Slow clouds wander far away
    The morning opens its eyes | A small bird begins to sing
    """),
    phrase_list("""
    Everything is still. | And then it is gone. | My heart is at home. | The day has begun.
    Silence falls like snow.
    """),
)
POEM = (
    phrase_list("""
    I sat beneath the evening sky, | The morning came without a sound,
    One day the wind came passing by, | I walked along the river shore,
    """),
    (
        ("and thought of {x}, and wondered why.", "and whispered {x}, a soft goodbye."),
        ("and there was {x}, all around.", "and {x} was all that I had found."),
        ("it sang of {x}, wild and high.", "with {x} in a lullaby."),
        ("and dreamed of {x}, nothing more.", "and {x} was there as before."),
    ),
    phrase_list("""
    It made me smile, it made me stay, | It was a gift, it was a song,
    The stars came out to hear it too, | I kept it with me, safe and near,
    """),
    (
        ("and stayed with me the whole long day.", "and would not ever go away."),
        ("and in my heart it will belong.", "and kept me company so long."),
        ("and all the world was fresh and new.", "and in the grass there shone the dew."),
        ("and carried it from year to year.", "and never had a thing to fear."),
    ),
)
