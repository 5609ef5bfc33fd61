"""The vocabulary that the other kinds draw from: names, places, things, words to repeat."""

from __future__ import annotations

import random

from engine.demo.data.text_blocks import phrase_list, tables, word_list

_TABLES = tables("words")
FIRST_NAMES = word_list(_TABLES["first names"])

LAST_NAMES = word_list(_TABLES["last names"])

CITIES = [
    *word_list("""
        Amsterdam Athens Atlanta Auckland Baghdad Baku Bangkok Barcelona Basel Beijing Beirut
        Belgrade Berlin Bern Birmingham Bogota Bologna Bordeaux Boston Bratislava Bremen
        Brisbane Bristol Brussels Bucharest Budapest Cairo Calgary Canberra Caracas Cardiff
        Casablanca Chicago Cologne Copenhagen Dakar Dallas Damascus Delhi Denver Detroit Dhaka
        Doha Dresden Dubai Dublin Edinburgh Florence Frankfurt Geneva Genoa Glasgow Hamburg
        Hanoi Havana Helsinki Houston Istanbul Jakarta Jerusalem Kathmandu Kiev Kingston Kyoto
        Lagos Leeds Leipzig Lima Lisbon Liverpool London Lyon Madrid Malaga Manchester Manila
        Marseille Melbourne Miami Milan Minsk Monaco Montreal Moscow Mumbai Munich Nairobi
        Nantes Naples Nice Osaka Oslo Ottawa Oxford Palermo Paris Perth Philadelphia Phoenix
        Porto Prague Pretoria Quito Riga Rome Rotterdam Salzburg Santiago Seattle Seoul Seville
        Shanghai Singapore Sofia Stockholm Stuttgart Sydney Taipei Tallinn Tehran Tokyo Toronto
        Toulouse Tunis Turin Utrecht Valencia Vancouver Venice Vienna Vilnius Warsaw Wellington
        Zagreb Zurich
    """),
    *phrase_list("""
        Buenos Aires | Cape Town | Hong Kong | Kuala Lumpur | Los Angeles | Mexico City
        New York | Rio de Janeiro | San Francisco | Sao Paulo | Tel Aviv
    """),
]

JOBS = word_list(_TABLES["jobs"])

COLOURS = word_list("""
red blue green yellow orange purple pink brown black white grey gold silver turquoise violet
""")

FOODS = word_list(_TABLES["foods"])

PRODUCTS = word_list(_TABLES["products"])

DAYS = word_list("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = word_list("""
January February March April May June July August September October November December
""")

ANIMALS = word_list(_TABLES["animals"])

PETS = word_list("""
Rex Bello Luna Coco Max Bella Charlie Daisy Rocky Simba Nala Oscar Milo Kiki Fluffy
""")

WORDS = word_list(_TABLES["words"])

_ONSETS = word_list("""
b bl br c ch cl cr d dr f fl fr g gl gr h j k kl kr l m n p pl pr qu r s sh sk sl st t th
tr v w y z
""")
_NUCLEI = word_list("a e i o u ai ea ee oo ou io")
_CODAS = word_list("n r l s t m k d x p sh nd nt rk st ng")


def person(rng: random.Random) -> str:
    """A first name, now and then with a last name."""
    first = rng.choice(FIRST_NAMES)
    return f"{first} {rng.choice(LAST_NAMES)}" if rng.random() < 0.3 else first


def made_up(rng: random.Random) -> str:
    """A word that means nothing, so that copying it cannot be learned by heart."""
    syllables = [rng.choice(_ONSETS) + rng.choice(_NUCLEI) for _ in range(rng.randint(1, 3))]
    return "".join(syllables) + (rng.choice(_CODAS) if rng.random() < 0.7 else "")


def any_word(rng: random.Random) -> str:
    """A common word, a name, a city, a thing, a number or a made-up word."""
    roll = rng.random()
    if roll < 0.55:
        return rng.choice(WORDS)
    if roll < 0.75:
        return rng.choice(rng.choice((PRODUCTS, FOODS, ANIMALS, COLOURS, JOBS)))
    if roll < 0.83:
        return rng.choice(rng.choice((FIRST_NAMES, CITIES)))
    if roll < 0.88:
        return str(rng.randint(0, 999))
    return made_up(rng)
