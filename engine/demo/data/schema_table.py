"""What sentences tell about things, as tables: keys, values, clauses. `schemas.py` uses them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.demo.data import fact_table
from engine.demo.data.text_blocks import phrase_list, word_list
from engine.demo.data.words import (
    ANIMALS,
    CITIES,
    COLOURS,
    DAYS,
    FIRST_NAMES,
    FOODS,
    JOBS,
    MONTHS,
    PETS,
    PRODUCTS,
    WORDS,
    made_up,
    person,
)

Draw = Callable[[random.Random], Any]


@dataclass(frozen=True)
class Field:
    """One thing to tell: the names of its key, how a value is drawn, how a clause says it.

    `denials` say that a boolean is false; what is a list is joined as in a sentence.
    """

    keys: Sequence[str]
    draw: Draw
    clauses: Sequence[str]
    denials: Sequence[str] = ()


@dataclass(frozen=True)
class Subject:
    """What sentences are about. `leads` hold `{v}`, its name; `words` name the kind of thing."""

    words: Sequence[str]
    name: Field
    leads: Sequence[str]
    pronouns: Sequence[str]
    fields: Sequence[Field]


_COUNTRIES = [row[0] for row in fact_table.COUNTRIES if not row[0].startswith("the ")]
_LANGUAGES = word_list("""
English French Spanish German Italian Chinese Arabic Russian Hindi Japanese Polish Turkish Dutch
""")
_HOBBIES = word_list("""
chess swimming reading cooking painting running dancing hiking football tennis music yoga
photography gardening fishing singing cycling skiing
""")
_MATERIALS = word_list("wood steel glass plastic cotton leather wool paper stone silk")
_GENRES = word_list("drama comedy fantasy romance thriller mystery horror adventure poetry crime")
_INDUSTRIES = word_list("""
software banking farming energy fashion food transport education medicine tourism
""")
_EVENTS = word_list("""
meeting concert party lesson dinner workshop exam match wedding conference festival lecture
""")
_DISHES = word_list("soup salad curry stew pie cake pizza pasta omelette sandwich risotto burger")
_BRANDS = word_list("Acme Nova Orion Zenith Vega Atlas Pico Lumen Terra Kestrel Fuji Volta")
_VEHICLES = word_list("car bike bus truck van scooter boat tractor motorcycle")


def one_of(values: Sequence[Any]) -> Draw:
    return lambda rng: rng.choice(values)


def between(low: int, high: int) -> Draw:
    return lambda rng: rng.randint(low, high)


def some_of(values: Sequence[str], most: int) -> Draw:
    return lambda rng: rng.sample(values, rng.randint(1, most))


def yes_or_no(rng: random.Random) -> bool:
    return rng.random() < 0.5


def decimal(low: int, high: int) -> Draw:
    """Prices and ratings with one or two digits after the point."""
    return lambda rng: rng.randint(low, high) + rng.choice((0.5, 0.99, 0.25, 0.75, 0.2, 0.9))


def who(rng: random.Random) -> str:
    return person(rng) if rng.random() < 0.8 else made_up(rng).capitalize()


def where(rng: random.Random) -> str:
    return rng.choice(CITIES) if rng.random() < 0.8 else made_up(rng).capitalize()


def company(rng: random.Random) -> str:
    name = rng.choice(_BRANDS) if rng.random() < 0.4 else made_up(rng).capitalize()
    return f"{name} {rng.choice(('Ltd', 'Inc', 'Labs', 'Group'))}" if rng.random() < 0.4 else name


def title(rng: random.Random) -> str:
    words = [word.capitalize() for word in rng.sample(WORDS, rng.randint(1, 2))]
    return rng.choice(("The ", "", "My ")) + " ".join(words)


def email(rng: random.Random) -> str:
    name = rng.choice(FIRST_NAMES).lower() if rng.random() < 0.7 else made_up(rng)
    host = rng.choice(("example.com", "mail.com", "post.org", f"{made_up(rng)}.net"))
    return f"{name}@{host}"


def phone(rng: random.Random) -> str:
    return f"{rng.randint(100, 999)}-{rng.randint(1000, 9999)}"


def clock(rng: random.Random) -> str:
    return f"{rng.randint(0, 23):02d}:{rng.choice((0, 15, 30, 45)):02d}"


def date(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return f"{rng.choice(MONTHS)} {rng.randint(1, 28)}"
    return f"{rng.randint(1950, 2030)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def code(rng: random.Random) -> str:
    return f"{rng.choice('ABCDEFGHKLMPRSTX')}{rng.randint(10, 9999)}"


def _field(keys: str, draw: Draw, clauses: str, denials: str = "") -> Field:
    return Field(
        word_list(keys), draw, phrase_list(clauses), phrase_list(denials) if denials else ()
    )


_CITY = _field(
    "city city location town place home residence",
    where,
    "lives in {v} | is from {v} | comes from {v} | moved to {v} | is living in {v}",
)
_COLOUR = _field("color colour", one_of(COLOURS), "is {v} | comes in {v} | has the colour {v}")
_PLACED = _field(
    "city location place", where, "is in {v} | is located in {v} | can be found in {v}"
)
_RATING = _field(
    "rating score stars", between(1, 10), "has a rating of {v} | got {v} points | is rated {v}"
)

PERSON = Subject(
    word_list("person person user employee customer student patient contact"),
    _field("name name person full_name", who, ""),
    phrase_list("{v} | {v} | {v} | My friend {v} | Our colleague {v} | Mr. {v} | Dr. {v}"),
    ("He", "She", "He also", "She also"),
    (
        _field(
            "age age years",
            between(1, 99),
            "is {v} years old | is {v} years old | is {v} | is aged {v} | turned {v} this year",
        ),
        _CITY,
        _field(
            "country birthplace nation",
            one_of(_COUNTRIES),
            "was born in {v} | grew up in {v} | has a passport of {v}",
        ),
        _field(
            "job job occupation profession role position",
            one_of(JOBS),
            "works as a {v} | is a {v} | has a job as a {v} | is working as a {v}",
        ),
        _field(
            "company employer organization workplace",
            company,
            "works for {v} | works at {v} | is employed by {v}",
        ),
        _field("height height_cm size tall", between(90, 210), "is {v} cm tall | measures {v} cm"),
        _field("weight weight_kg mass", between(10, 140), "weighs {v} kg"),
        _field(
            "salary income wage pay",
            between(900, 9999),
            "earns {v} dollars | earns {v} euros a month | has a salary of {v}",
        ),
        _field("languages speaks language_list", some_of(_LANGUAGES, 3), "speaks {v} | knows {v}"),
        _field(
            "hobbies interests likes activities",
            some_of(_HOBBIES, 3),
            "likes {v} | enjoys {v} | is interested in {v}",
        ),
        _field("children kids num_children", between(1, 9), "has {v} children | has {v} kids"),
        _field("pet pet_name dog", one_of(PETS), "has a dog called {v} | has a pet named {v}"),
        _field("email mail email_address", email, "can be reached at {v} | has the email {v}"),
        _field(
            "phone phone_number telephone number",
            phone,
            "has the phone number {v} | can be called at {v}",
        ),
        _field("married is_married", yes_or_no, "is married", "is not married | is single"),
        _field(
            "student is_student", yes_or_no, "is a student | is still a student", "is no student"
        ),
        _field("vegetarian is_vegetarian", yes_or_no, "is a vegetarian", "is not a vegetarian"),
        _field("birthday birth_date date_of_birth born", date, "was born on {v}"),
        _field("favorite_color color", one_of(COLOURS), "likes the colour {v} best"),
        _field("food favorite_food", one_of(FOODS), "loves to eat {v}"),
    ),
)

PRODUCT = Subject(
    word_list("product product item article thing"),
    _field("product name item title", one_of(PRODUCTS), ""),
    phrase_list("The {v} | This {v} | Our {v} | My new {v} | A {v}"),
    ("It",),
    (
        _field(
            "price cost amount",
            between(1, 999),
            "costs {v} dollars | costs {v} euros | is sold for {v} dollars | is ${v}",
        ),
        _field("price_usd value", decimal(0, 90), "is priced at {v} | has a price of {v} dollars"),
        _COLOUR,
        _field("material made_of", one_of(_MATERIALS), "is made of {v} | consists of {v}"),
        _field("brand maker manufacturer", company, "is made by {v} | is a product of {v}"),
        _field("stock quantity count", between(0, 500), "is available {v} times"),
        _field("weight weight_kg", between(1, 90), "weighs {v} kg"),
        _field("length size width", between(2, 300), "is {v} cm long | measures {v} cm"),
        _RATING,
        _field("in_stock available", yes_or_no, "is in stock | is available", "is sold out"),
        _field("id sku code", code, "has the code {v} | has the number {v}"),
    ),
)

BOOK = Subject(
    word_list("book movie film work song"),
    _field("title name", title, ""),
    phrase_list('"{v}" | The book "{v}" | The film "{v}" | {v} | The novel {v}'),
    ("It",),
    (
        _field("author writer creator", who, "was written by {v} | is a work of {v}"),
        _field(
            "year published release_year",
            between(1900, 2030),
            "came out in {v} | was published in {v} | is from {v}",
        ),
        _field("genre category type", one_of(_GENRES), "belongs to the genre {v} | is a {v}"),
        _field("pages length num_pages", between(20, 999), "has {v} pages"),
        _field("language", one_of(_LANGUAGES), "is written in {v}"),
        _field("director", who, "was directed by {v}"),
        _RATING,
    ),
)

EVENT = Subject(
    word_list("event event meeting appointment"),
    _field("event name title type", one_of(_EVENTS), ""),
    phrase_list("The {v} | Our {v} | The next {v} | The big {v}"),
    ("It",),
    (
        _field("day weekday", one_of(DAYS), "is on {v} | takes place on {v}"),
        _field("date when", date, "is planned for {v} | is scheduled for {v}"),
        _field("time start start_time", clock, "starts at {v} | begins at {v}"),
        _field("end end_time", clock, "ends at {v} | is over at {v}"),
        _field("place location city venue", where, "is in {v} | takes place in {v}"),
        _field("guests attendees participants", some_of(FIRST_NAMES, 3), "is attended by {v}"),
        _field("organizer host", who, "is organized by {v} | is hosted by {v}"),
        _field("price fee ticket", between(1, 200), "costs {v} euros"),
        _field("room", code, "is in room {v}"),
        _field("online is_online", yes_or_no, "is online", "is not online"),
    ),
)

COMPANY = Subject(
    word_list("company company business startup"),
    _field("company name", company, ""),
    phrase_list("{v} | The company {v} | The startup {v}"),
    ("It",),
    (
        _field("founded year since", between(1850, 2026), "was founded in {v} | exists since {v}"),
        _field("employees staff size", between(2, 9999), "has {v} employees | employs {v} people"),
        _PLACED,
        _field("ceo boss founder", who, "is led by {v} | has {v} as its boss"),
        _field("industry sector", one_of(_INDUSTRIES), "works in {v} | is active in {v}"),
        _field("revenue sales", between(1, 900), "makes {v} million dollars a year"),
        _field("website url", lambda rng: f"{made_up(rng)}.com", "has the website {v}"),
    ),
)

PET = Subject(
    word_list("animal pet"),
    _field("name pet", one_of(PETS), ""),
    phrase_list("{v} | Our pet {v} | Little {v}"),
    ("It", "He", "She"),
    (
        _field("animal species kind", one_of(ANIMALS), "is a {v}"),
        _field("age", between(1, 30), "is {v} years old"),
        _COLOUR,
        _field("weight", between(1, 90), "weighs {v} kg"),
        _field("owner", who, "belongs to {v}"),
        _field("food eats", one_of(FOODS), "eats {v} | likes {v}"),
    ),
)

HOTEL = Subject(
    word_list("hotel restaurant place"),
    _field("name hotel", lambda rng: f"Hotel {made_up(rng).capitalize()}", ""),
    phrase_list("{v} | The {v}"),
    ("It",),
    (
        _PLACED,
        _field("stars rating", between(1, 5), "has {v} stars"),
        _field("rooms num_rooms", between(5, 900), "has {v} rooms"),
        _field("price price_per_night", between(20, 900), "costs {v} euros a night"),
        _field("pool has_pool", yes_or_no, "has a pool", "has no pool"),
    ),
)

RECIPE = Subject(
    word_list("recipe dish meal"),
    _field("dish name recipe", one_of(_DISHES), ""),
    phrase_list("The {v} | This {v} | My {v}"),
    ("It",),
    (
        _field("minutes time duration", between(5, 180), "takes {v} minutes"),
        _field("servings people", between(1, 12), "serves {v} people | is for {v} people"),
        _field(
            "ingredients contains", some_of(FOODS, 4), "contains {v} | is made with {v} | needs {v}"
        ),
        _field("vegan is_vegan", yes_or_no, "is vegan", "is not vegan"),
        _field("calories kcal", between(50, 1200), "has {v} calories"),
        _field("country origin", one_of(_COUNTRIES), "comes from {v}"),
    ),
)

VEHICLE = Subject(
    word_list("vehicle car"),
    _field("vehicle type", one_of(_VEHICLES), ""),
    phrase_list("The {v} | My {v} | That {v}"),
    ("It",),
    (
        _field("brand make", one_of(_BRANDS), "is made by {v}"),
        _field("year built", between(1950, 2026), "was built in {v} | is from {v}"),
        _COLOUR,
        _field("speed top_speed", between(20, 300), "drives {v} km/h | reaches {v} km/h"),
        _field("seats", between(1, 60), "has {v} seats"),
        _field("electric is_electric", yes_or_no, "is electric", "is not electric"),
        _field("owner", who, "belongs to {v}"),
    ),
)

SUBJECTS = (PERSON, PRODUCT, BOOK, EVENT, COMPANY, PET, HOTEL, RECIPE, VEHICLE)
