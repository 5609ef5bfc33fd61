"""Fields of a sentence as JSON: the keys that were asked for, in the order that was asked."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.demo.data import fact_table
from engine.demo.data.arithmetic import price, shopping
from engine.demo.data.example import JsonEquals, Turn, fill, join_words, phrase, say
from engine.demo.data.text_blocks import phrase_list
from engine.demo.data.words import (
    CITIES,
    COLOURS,
    DAYS,
    FIRST_NAMES,
    FOODS,
    JOBS,
    MONTHS,
    PRODUCTS,
    made_up,
    person,
)

KIND = "extract"
Values = dict[str, Any]


@dataclass(frozen=True)
class Scene:
    """Sentences about one kind of thing, and what else its keys may be called."""

    sentences: tuple[str, ...]
    draw: Callable[[random.Random], Values]
    aliases: Mapping[str, tuple[str, ...]]


def _who(rng: random.Random) -> str:
    return person(rng) if rng.random() < 0.85 else made_up(rng).capitalize()


def _where(rng: random.Random) -> str:
    return rng.choice(CITIES) if rng.random() < 0.85 else made_up(rng).capitalize()


def _time(rng: random.Random) -> str:
    return f"{rng.randint(0, 23):02d}:{rng.choice((0, 15, 30, 45)):02d}"


def _person(rng: random.Random) -> Values:
    return {
        "name": _who(rng),
        "age": rng.randint(5, 99),
        "city": _where(rng),
        "job": rng.choice(JOBS),
    }


def _product(rng: random.Random) -> Values:
    return {
        "product": rng.choice(PRODUCTS),
        "color": rng.choice(COLOURS),
        "price": price(rng),
        "store": f"{_where(rng)} {rng.choice(('Store', 'Market', 'Shop'))}",
    }


def _meeting(rng: random.Random) -> Values:
    event = rng.choice(
        ("meeting", "concert", "party", "lesson", "dinner", "workshop", "exam", "match")
    )
    return {"event": event, "day": rng.choice(DAYS), "time": _time(rng), "place": _where(rng)}


def _contact(rng: random.Random) -> Values:
    first = rng.choice(FIRST_NAMES)
    host = rng.choice(("example.com", "mail.com", "post.org", f"{made_up(rng)}.net"))
    return {
        "name": first,
        "email": f"{first.lower()}@{host}",
        "phone": f"555-{rng.randint(1000, 9999)}",
    }


def _order(rng: random.Random) -> Values:
    item, quantity = shopping(rng)
    return {"customer": _who(rng), "item": item, "quantity": quantity, "price": price(rng)}


def _trip(rng: random.Random) -> Values:
    start, end = rng.sample(CITIES, 2)
    date = f"{rng.choice(MONTHS)} {rng.randint(1, 28)}"
    return {"name": _who(rng), "from": start, "to": end, "date": date}


def _taste(rng: random.Random) -> Values:
    return {"name": _who(rng), "food": rng.choice(FOODS), "color": rng.choice(COLOURS)}


SCENES = (
    Scene(
        phrase_list("""
            {name} is {age} years old and lives in {city}, working as a {job}.
            {name}, {age}, is a {job} from {city}.
            My neighbour {name} is a {job}, {age} years old, living in {city}.
            {name} lives in {city}, is {age} years old and works as a {job}.
            I met {name}, a {age}-year-old {job} from {city}.
            The {job} {name} ({age}) comes from {city}.
            At the age of {age}, {name} moved to {city} to become a {job}.
        """),
        _person,
        {
            "name": ("person", "full_name"),
            "city": ("location", "town"),
            "job": ("occupation", "profession"),
        },
    ),
    Scene(
        phrase_list("""
            The {color} {product} costs {price} dollars at {store}.
            At {store} you get a {color} {product} for {price} euros.
            I bought a {color} {product} for {price} dollars at {store}.
            {store} sells a {color} {product} for ${price}.
            A {product} in {color} is {price} dollars at {store}.
        """),
        _product,
        {
            "product": ("item", "article"),
            "price": ("cost", "amount"),
            "color": ("colour",),
            "store": ("shop",),
        },
    ),
    Scene(
        phrase_list("""
            The {event} is on {day} at {time} in {place}.
            On {day} at {time} there is a {event} in {place}.
            We have a {event} in {place} on {day}, starting at {time}.
            Join us in {place} for the {event} on {day} at {time}.
            Reminder: {event} at {time} on {day} in {place}.
        """),
        _meeting,
        {
            "event": ("title", "type"),
            "day": ("weekday",),
            "time": ("start", "hour"),
            "place": ("location", "city"),
        },
    ),
    Scene(
        phrase_list("""
            You can reach {name} at {email} or {phone}. | Contact {name}: {email}, {phone}.
            {name}'s email is {email} and the phone number is {phone}.
            Call {name} at {phone} or write to {email}.
            Please send it to {name} ({email}, phone {phone}).
        """),
        _contact,
        {
            "name": ("person", "contact"),
            "email": ("mail", "email_address"),
            "phone": ("phone_number", "telephone"),
        },
    ),
    Scene(
        phrase_list("""
            {customer} ordered {quantity} {item} for {price} dollars.
            Order: {quantity} {item} for {customer}, total {price} dollars.
            {quantity} {item} were sold to {customer} for {price} euros.
            {customer} bought {quantity} {item} and paid {price} dollars.
            Please deliver {quantity} {item} to {customer}. The price is {price} dollars.
        """),
        _order,
        {
            "customer": ("name", "buyer"),
            "item": ("product", "goods"),
            "quantity": ("count", "amount"),
            "price": ("total", "cost"),
        },
    ),
    Scene(
        phrase_list("""
            {name} travels from {from} to {to} on {date}.
            On {date}, {name} flies from {from} to {to}.
            {name} takes the train to {to} from {from} on {date}.
            Book a ticket for {name} from {from} to {to} on {date}.
            {name} will leave {from} for {to} on {date}.
        """),
        _trip,
        {
            "name": ("passenger", "traveler"),
            "from": ("origin", "departure"),
            "to": ("destination",),
            "date": ("day",),
        },
    ),
    Scene(
        phrase_list("""
            {name} likes {food} and the colour {color}.
            The favourite food of {name} is {food}, the favourite colour is {color}.
            {name} loves {food} and always wears {color}.
            For {name}, {food} and a {color} cup, please.
        """),
        _taste,
        {"name": ("person", "guest"), "food": ("meal",), "color": ("colour", "favourite_color")},
    ),
)

_ASK = (
    "Extract {keys} as JSON: {text}",
    "Extract the {keys} from this sentence as JSON: {text}",
    "Return {keys} as JSON. Sentence: {text}",
    "{text}\nExtract {keys} as JSON.",
    "{text} Give me the {keys} as JSON.",
    'Get {keys} from "{text}" as JSON.',
    "Turn this into JSON with the keys {keys}: {text}",
    "JSON with {keys}, please: {text}",
    "Text: {text}\nFields: {keys}\nAnswer in JSON.",
    "Find {keys} in this text and answer in JSON: {text}",
    "Parse this sentence into JSON with {keys}: {text}",
    "Extract {keys} from the text. Reply with JSON only.\n\n{text}",
    "Convert to JSON ({keys}): {text}",
    "Please extract {keys} as a JSON object from: {text}",
)
_ASK_FORM = (
    "Fill in {form} from this sentence: {text}",
    "{text}\nAnswer with JSON like {form}",
    "Use this format: {form}\nSentence: {text}",
)
_ASK_FACT = phrase_list("""
Give me JSON with the {keys} of {country}. | {keys} of {country} as JSON, please.
Describe {country} as JSON with {keys}. | Return a JSON object with {keys} for {country}.
""")
_ASK_NAMES = (
    "Extract all {key} as a JSON object: {text}",
    "List the {key} in this text as JSON: {text}",
    "{text}\nReturn the {key} as JSON.",
    "Which {key} are in this text? Answer as JSON. {text}",
)
_GROUPS = {
    "names": FIRST_NAMES,
    "cities": CITIES,
    "colors": COLOURS,
    "items": FOODS,
}
_GROUP_SENTENCES = {
    "names": ("{all} went to the park.", "Today {all} came to visit.", "I saw {all} at school."),
    "cities": phrase_list("""
        We visited {all} last year. | The train stops in {all}. | My favourite cities are {all}.
    """),
    "colors": ("The flag is {all}.", "She painted it {all}.", "I like {all} best."),
    "items": phrase_list("""
        Please buy {all}. | We need {all} for dinner. | The basket is full of {all}.
    """),
}


def turns(rng: random.Random) -> list[Turn]:
    roll = rng.random()
    if roll < 0.72:
        return _from_sentence(rng)
    if roll < 0.82:
        return [_from_form(rng)]
    return [_array(rng) if roll < 0.92 else _fact(rng)]


def _from_sentence(rng: random.Random) -> list[Turn]:
    names, values, text = _scene(rng)
    result = [_ask(rng, names, values, text)]
    if rng.random() < 0.12 and len(names) > 1:
        rest = {key: values[key] for key in rng.sample(sorted(names), 1)}
        again = ("Now only {keys}.", "Only the {keys}, please.", "Just {keys} as JSON.")
        shown, _ = phrase(rng, again, keys=names[next(iter(rest))])
        value = {names[key]: rest[key] for key in rest}
        result.append(_json(shown, value, f"only {text}"))
    return result


def _scene(rng: random.Random) -> tuple[dict[str, str], Values, str]:
    """Draws a sentence. Returns what each asked key is called, all values, and the sentence."""
    scene = rng.choice(SCENES)
    values = scene.draw(rng)
    asked = rng.sample(sorted(values), rng.randint(1, len(values)))
    names: dict[str, str] = {}
    for key in asked:
        other = rng.choice(scene.aliases.get(key, (key,)))
        name = other if rng.random() < 0.3 else key
        names[key] = key if name in names.values() or name in values else name
    return names, values, fill(rng.choice(scene.sentences), values)


def _ask(rng: random.Random, names: dict[str, str], values: Values, text: str) -> Turn:
    shown, _ = phrase(rng, _ASK, keys=_key_list(rng, list(names.values())), text=text)
    return _json(shown, {name: values[key] for key, name in names.items()}, text)


def _key_list(rng: random.Random, keys: list[str]) -> str:
    roll = rng.random()
    if roll < 0.55:
        return join_words(keys)
    if roll < 0.85:
        return ", ".join(keys)
    return ", ".join(f'"{key}"' for key in keys)


def _from_form(rng: random.Random) -> Turn:
    names, values, text = _scene(rng)
    empty = {name: 0 if isinstance(values[key], int) else "" for key, name in names.items()}
    shown, _ = phrase(rng, _ASK_FORM, form=json.dumps(empty), text=text)
    return _json(shown, {name: values[key] for key, name in names.items()}, text)


def _array(rng: random.Random) -> Turn:
    key = rng.choice(list(_GROUPS))
    picked = rng.sample(_GROUPS[key], rng.randint(2, 4))
    text = fill(rng.choice(_GROUP_SENTENCES[key]), {"all": join_words(picked)})
    return _json(phrase(rng, _ASK_NAMES, key=key, text=text)[0], {key: picked}, text)


def _fact(rng: random.Random) -> Turn:
    country, capital, continent = rng.choice(fact_table.COUNTRIES)
    bare = country.removeprefix("the ")
    full = {"country": bare, "capital": capital, "continent": continent}
    keys = rng.sample(sorted(full), rng.randint(1, 3))
    shown, clean = phrase(rng, _ASK_FACT, keys=_key_list(rng, keys), country=bare)
    return _json(shown, {key: full[key] for key in keys}, clean)


def _json(prompt: str, value: Any, key: str) -> Turn:
    return say(KIND, prompt, json.dumps(value, ensure_ascii=False), JsonEquals(value), key=key)
