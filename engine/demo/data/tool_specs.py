"""What a kind of tool is: names and words vary, so that they are copied, not known."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.demo.data.words import WORDS, any_word, made_up

Values = dict[str, Any]
Draw = Callable[[random.Random], Any]


@dataclass(frozen=True)
class Param:
    """One parameter: the names it may go by, its JSON type, how a value is drawn."""

    names: tuple[str, ...]
    type: str
    description: str
    draw: Draw
    enum: tuple[str, ...] = ()
    optional: bool = False


@dataclass(frozen=True)
class ToolSpec:
    """A kind of tool. `asks` hold canonical parameter names; `asks_more` use the optional ones.

    `results` are pairs of what the tool returns (JSON with placeholders, values not quoted by us)
    and what the model then says.
    """

    names: Sequence[str]
    descriptions: Sequence[str]
    params: dict[str, Param]
    asks: Sequence[str]
    results: Sequence[tuple[str, ...]]
    extras: Callable[[random.Random], Values] = lambda rng: {}
    asks_more: Sequence[str] = ()
    follow_ups: Sequence[str] = ()


def made_up_spec(rng: random.Random) -> ToolSpec:
    """A lookup of something that no other chat knows: only its schema says how to call it."""
    noun = rng.choice(WORDS) if rng.random() < 0.6 else made_up(rng)
    verb = rng.choice(("lookup", "find", "get", "check", "open", "start", "delete", "fetch"))
    param = rng.choice(("id", "name", "query", "key", "code", "number", noun))
    number = param in ("id", "number")
    draw: Draw = (lambda rng: rng.randint(1, 9999)) if number else any_word
    field = rng.choice(("status", "result", "value", "state"))
    return ToolSpec(
        names=(f"{verb}_{noun}", f"{noun}_{verb}"),
        descriptions=(
            f"{verb.capitalize()} a {noun}",
            f"{verb.capitalize()}s the {noun} with this {param}.",
        ),
        params={
            param: Param((param,), "integer" if number else "string", f"The {param}", draw),
        },
        asks=(
            f"{verb.capitalize()} the {noun} {{{param}}}.",
            f"Please {verb} {noun} {{{param}}}.",
            f"{verb} {noun} {{{param}}}",
            f"Can you {verb} the {noun} with {param} {{{param}}}?",
            f"I want to {verb} the {noun} {{{param}}}.",
        ),
        results=(
            (f'{{"{field}": "{{out}}"}}', f"The {field} of {noun} {{{param}}} is {{out}}."),
            ("{out}", f"The answer for {noun} {{{param}}} is {{out}}."),
        ),
        extras=lambda rng: {"out": any_word(rng)},
    )
