"""The tools that chats offer, as tables. `tools.py` makes chats with them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from engine.demo.data.text_blocks import phrase_list, rows, word_list
from engine.demo.data.tool_specs import Draw, Param, ToolSpec
from engine.demo.data.words import (
    CITIES,
    COLOURS,
    DAYS,
    FIRST_NAMES,
    FOODS,
    PRODUCTS,
    WORDS,
    any_word,
    made_up,
    person,
)


def _one_of(values: Sequence[Any]) -> Draw:
    return lambda rng: rng.choice(values)


def _between(low: int, high: int) -> Draw:
    return lambda rng: rng.randint(low, high)


def _city(rng: random.Random) -> str:
    return rng.choice(CITIES) if rng.random() < 0.85 else made_up(rng).capitalize()


def _words(low: int, high: int) -> Draw:
    return lambda rng: " ".join(any_word(rng) for _ in range(rng.randint(low, high)))


def _clock(rng: random.Random) -> str:
    return f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"


def _task(rng: random.Random) -> str:
    verb = rng.choice(("call", "buy", "visit", "find", "bring", "clean"))
    return f"{verb} {_words(1, 2)(rng)}"


def _product(rng: random.Random) -> str:
    if rng.random() < 0.6:
        return f"{rng.choice(COLOURS)} {rng.choice(PRODUCTS)}"
    return rng.choice(PRODUCTS)


def _song(rng: random.Random) -> str:
    return f"{rng.choice(WORDS)} {rng.choice(WORDS)}" if rng.random() < 0.6 else person(rng)


def _restaurant(rng: random.Random) -> str:
    return f"{rng.choice(('Casa', 'Cafe', 'Chez', 'The'))} {rng.choice(FIRST_NAMES)}"


def _ticker(rng: random.Random) -> str:
    return "".join(rng.choices("ABCDEFGHIKLMNOPRSTUVXYZ", k=rng.randint(3, 4)))


_UNITS = ("celsius", "fahrenheit")
_CURRENCIES = ("EUR", "USD", "GBP", "JPY", "CHF", "CAD", "AUD", "CNY", "INR", "SEK")
_SKIES = ("sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "stormy", "clear")
_LANGUAGES = ("French", "Spanish", "German", "Italian", "Japanese", "Polish", "Turkish", "Dutch")
_ROOMS = ("kitchen", "bedroom", "bathroom", "living room", "garage", "office", "hall")

CITY = Param(("city", "city", "location", "place"), "string", "The city", _city)

WEATHER = ToolSpec(
    names=word_list("""
        get_weather get_weather weather current_weather fetch_weather get_current_weather
    """),
    descriptions=phrase_list("""
        Get the current weather in a city | Current weather for a location
        Returns the weather of a city. | Look up the weather
    """),
    params={
        "city": CITY,
        "unit": Param(
            ("unit", "units"),
            "string",
            "Temperature unit",
            _one_of(_UNITS),
            enum=_UNITS,
            optional=True,
        ),
    },
    asks=phrase_list("""
        What is the weather in {city}? | What's the weather like in {city}?
        How is the weather in {city}? | Weather in {city}? | Is it warm in {city}?
        Tell me the weather in {city}. | Is it raining in {city}?
        Do I need a coat in {city} today? | How warm is it in {city}? | weather {city}
        Can you check the weather in {city}? | What is the temperature in {city}?
    """),
    results=rows("""
        {"temperature": {t}, "condition": "{sky}"} | It is {t} °C and {sky} in {city}.
        {"city": "{city}", "temperature_c": {t}, "conditions": "{sky}"}
        | It is {t} °C and {sky} in {city}.
        {"temp": {t}, "unit": "celsius", "description": "{sky}"} | It is {t} °C and {sky} in {city}.
        {"temperature": {t}, "weather": "{sky}", "wind_kmh": {w}}
        | It is {t} °C and {sky} in {city}, with {w} km/h of wind.
        {"location": "{city}", "temperature": {t}} | It is {t} °C in {city}.
        {t}°C, {sky} | It is {t} °C and {sky} in {city}.
        {sky}, {t} degrees | It is {t} °C and {sky} in {city}.
    """),
    extras=lambda rng: {
        "t": rng.randint(-15, 40),
        "sky": rng.choice(_SKIES),
        "w": rng.randint(0, 90),
    },
    asks_more=phrase_list("""
        What is the weather in {city} in {unit}? | Temperature in {city} in {unit}, please.
        How warm is it in {city}? Use {unit}. | Give me the weather of {city} in degrees {unit}.
    """),
    follow_ups=phrase_list("And in {city}? | What about {city}? | And {city}? | How about {city}?"),
)

TIME = ToolSpec(
    names=word_list("get_time get_time current_time time_in_city get_local_time"),
    descriptions=phrase_list("""
        Get the current time in a city | Local time of a place | Returns the time in a city.
    """),
    params={"city": CITY},
    asks=phrase_list("""
        What time is it in {city}? | What is the time in {city}? | Time in {city}?
        Tell me the time in {city}. | How late is it in {city}? | What's the local time in {city}?
        Do you know what time it is in {city}?
    """),
    results=rows("""
        {"time": "{time}"} | It is {time} in {city}.
        {"city": "{city}", "local_time": "{time}"} | It is {time} in {city}.
        {"time": "{time}", "day": "{day}"} | It is {time} on {day} in {city}.
        {time} | It is {time} in {city}.
    """),
    extras=lambda rng: {"time": _clock(rng), "day": rng.choice(DAYS)},
    follow_ups=phrase_list("And in {city}? | What about {city}? | And {city}?"),
)

OTHERS = (
    ToolSpec(
        names=word_list("search_products search find_product product_search"),
        descriptions=phrase_list("""
            Search the shop for products | Find products by name | Searches the catalog.
        """),
        params={
            "query": Param(
                ("query", "q", "product", "name"),
                "string",
                "What to search for",
                _product,
            ),
            "max_price": Param(
                ("max_price", "price_limit", "max"),
                "integer",
                "Highest price",
                _between(5, 900),
                optional=True,
            ),
        },
        asks=phrase_list("""
            Find a {query}. | I am looking for a {query}. | Search for a {query}.
            Do you sell a {query}? | Show me a {query}. | I want to buy a {query}.
            Can you search for a {query}?
        """),
        results=rows("""
            {"results": [{"name": "{query}", "price": {p}}]} | I found a {query} for {p} dollars.
            {"name": "{query}", "price": {p}, "in_stock": true} | I found a {query} for {p} dollars.
            {"results": []} | I found nothing for {query}.
        """),
        extras=lambda rng: {"p": rng.randint(3, 900)},
        asks_more=phrase_list("""
            Find a {query} under {max_price} dollars.
            I want a {query} for less than {max_price} dollars.
            Search for a {query}, at most {max_price} dollars.
            Is there a {query} below {max_price}?
        """),
    ),
    ToolSpec(
        names=word_list("convert_currency convert currency_converter exchange"),
        descriptions=phrase_list("""
            Convert an amount of money | Converts money from one currency to another
        """),
        params={
            "amount": Param(("amount", "value"), "number", "The amount", _between(1, 999)),
            "from": Param(
                ("from", "from_currency", "source"),
                "string",
                "Currency code to convert from",
                _one_of(_CURRENCIES[:5]),
            ),
            "to": Param(
                ("to", "to_currency", "target"),
                "string",
                "Currency code to convert to",
                _one_of(_CURRENCIES[5:]),
            ),
        },
        asks=phrase_list("""
            Convert {amount} {from} to {to}. | How much is {amount} {from} in {to}?
            What are {amount} {from} in {to}? | {amount} {from} in {to}?
            Change {amount} {from} into {to}, please.
        """),
        results=rows("""
            {"result": {p}} | {amount} {from} are {p} {to}.
            {"amount": {p}, "currency": "{to}"} | {amount} {from} are {p} {to}.
            {p} | {amount} {from} are {p} {to}.
        """),
        extras=lambda rng: {"p": rng.randint(1, 9999)},
    ),
    ToolSpec(
        names=word_list("send_email send_message email send_mail"),
        descriptions=phrase_list("Send a message to a person | Sends an email | Write to somebody"),
        params={
            "to": Param(
                ("to", "recipient", "person"), "string", "Who gets it", _one_of(FIRST_NAMES)
            ),
            "text": Param(
                ("text", "body", "message", "content"),
                "string",
                "The text",
                _words(1, 6),
            ),
        },
        asks=phrase_list("""
            Send {to} the message "{text}" | Write to {to}: {text} | Tell {to}: {text}
            Send a mail to {to} saying {text} | Email {to} "{text}" | Message {to}: {text}
        """),
        results=rows("""
            {"status": "sent"} | I sent your message to {to}.
            {"ok": true} | I sent your message to {to}.
            sent | I sent your message to {to}.
            {"error": "address not found"} | The message could not be sent: address not found.
        """),
    ),
    ToolSpec(
        names=word_list("create_reminder add_reminder set_reminder remind"),
        descriptions=phrase_list("Create a reminder | Remind the user of something at a time"),
        params={
            "text": Param(
                ("text", "title", "task", "what"),
                "string",
                "What to remember",
                _task,
            ),
            "time": Param(("time", "at", "when"), "string", "When", _clock),
        },
        asks=phrase_list("""
            Remind me to {text} at {time}. | Set a reminder to {text} at {time}.
            At {time}, remind me to {text}. | I must {text} at {time}, please remind me.
            Reminder at {time}: {text}
        """),
        results=rows("""
            {"status": "created"} | I will remind you to {text} at {time}.
            {"ok": true, "id": {p}} | I will remind you to {text} at {time}.
        """),
        extras=lambda rng: {"p": rng.randint(1, 999)},
    ),
    ToolSpec(
        names=word_list("get_stock_price stock_price get_quote"),
        descriptions=phrase_list("Get the price of a stock | Latest price of a share"),
        params={
            "symbol": Param(
                ("symbol", "ticker"),
                "string",
                "The ticker symbol",
                _ticker,
            ),
        },
        asks=phrase_list("""
            What is the price of {symbol}? | Price of {symbol}? | How much is {symbol} stock?
            What is the stock price of {symbol}? | Get a quote for {symbol}.
        """),
        results=rows("""
            {"price": {p}} | The price of {symbol} is {p}.
            {"symbol": "{symbol}", "price": {p}, "currency": "USD"}
            | The price of {symbol} is {p} USD.
        """),
        extras=lambda rng: {"p": rng.randint(1, 999)},
        follow_ups=phrase_list("And {symbol}? | What about {symbol}?"),
    ),
    ToolSpec(
        names=word_list("translate translate_text translator"),
        descriptions=phrase_list("Translate a text | Translates text into another language"),
        params={
            "text": Param(("text", "sentence", "input"), "string", "The text", _words(1, 5)),
            "language": Param(
                ("language", "target", "to"), "string", "Target language", _one_of(_LANGUAGES)
            ),
        },
        asks=phrase_list("""
            Translate "{text}" into {language} with the tool.
            Use the translator: "{text}" to {language}.
            Call the translator for "{text}" in {language}.
        """),
        results=rows("""
            {"translation": "{out}"} | In {language} it is "{out}".
            {out} | In {language} it is "{out}".
        """),
        extras=lambda rng: {"out": f"{made_up(rng)} {made_up(rng)}"},
    ),
    ToolSpec(
        names=word_list("play_music play play_song music_player"),
        descriptions=phrase_list("Play a song or an artist | Plays music"),
        params={
            "query": Param(
                ("query", "song", "title"),
                "string",
                "What to play",
                _song,
            ),
        },
        asks=phrase_list("""
            Play {query}. | Play some {query}. | I want to hear {query}. | Put on {query}, please.
            Can you play {query}?
        """),
        results=rows("""
            {"status": "playing"} | Now playing {query}.
            {"ok": true} | Now playing {query}.
            {"error": "not found"} | I could not play {query}: not found.
        """),
    ),
    ToolSpec(
        names=word_list("set_timer start_timer timer"),
        descriptions=phrase_list("Start a timer | Sets a timer for some minutes"),
        params={
            "minutes": Param(
                ("minutes", "duration", "length"), "integer", "Minutes", _between(1, 120)
            ),
        },
        asks=phrase_list("""
            Set a timer for {minutes} minutes. | Timer for {minutes} minutes, please.
            Start a {minutes} minute timer. | Wake me in {minutes} minutes.
            Tell me when {minutes} minutes are over.
        """),
        results=rows("""
            {"status": "started"} | The timer is set for {minutes} minutes.
            {"ok": true} | The timer is set for {minutes} minutes.
        """),
    ),
    ToolSpec(
        names=word_list("book_table reserve_table restaurant_booking"),
        descriptions=phrase_list("Book a table in a restaurant | Reserve a table"),
        params={
            "restaurant": Param(
                ("restaurant", "name", "place"),
                "string",
                "Name of the restaurant",
                _restaurant,
            ),
            "people": Param(
                ("people", "guests", "party_size"), "integer", "How many people", _between(1, 12)
            ),
            "time": Param(("time", "at"), "string", "When", _clock),
        },
        asks=phrase_list("""
            Book a table at {restaurant} for {people} people at {time}.
            Reserve {people} seats at {restaurant} for {time}.
            I need a table for {people} at {restaurant} at {time}.
            Table for {people} at {time} in {restaurant}, please.
        """),
        results=rows("""
            {"status": "confirmed", "code": "{code}"}
            | Your table at {restaurant} is confirmed. The code is {code}.
            {"error": "fully booked"} | The table could not be booked: fully booked.
        """),
        extras=lambda rng: {"code": f"{rng.choice('ABCDEFGH')}{rng.randint(100, 999)}"},
    ),
    ToolSpec(
        names=word_list("get_distance distance route"),
        descriptions=phrase_list("""
            Distance between two cities | Get the distance from one place to another
        """),
        params={
            "from": Param(("from", "origin", "start"), "string", "Start", _city),
            "to": Param(("to", "destination", "end"), "string", "End", _city),
        },
        asks=phrase_list("""
            How far is it from {from} to {to}? | Distance from {from} to {to}?
            How many kilometres are between {from} and {to}?
            What is the distance between {from} and {to}?
        """),
        results=rows("""
            {"km": {p}} | It is {p} km from {from} to {to}.
            {"distance_km": {p}, "hours": {h}} | It is {p} km from {from} to {to}.
        """),
        extras=lambda rng: {"p": rng.randint(20, 9999), "h": rng.randint(1, 30)},
    ),
    ToolSpec(
        names=word_list("switch_light set_light control_light"),
        descriptions=phrase_list("Switch a light on or off | Controls the light of a room"),
        params={
            "room": Param(("room", "where"), "string", "The room", _one_of(_ROOMS)),
            "state": Param(
                ("state", "mode"), "string", "on or off", _one_of(("on", "off")), enum=("on", "off")
            ),
        },
        asks=phrase_list("""
            Turn {state} the light in the {room}. | Switch the {room} light {state}.
            Light {state} in the {room}, please. | Please turn the {room} light {state}.
        """),
        results=rows("""
            {"status": "ok"} | The light in the {room} is {state} now.
            {"ok": true} | The light in the {room} is {state} now.
        """),
    ),
    ToolSpec(
        names=word_list("add_to_list shopping_list_add add_item"),
        descriptions=phrase_list("Add an item to the shopping list | Puts something on the list"),
        params={
            "item": Param(
                ("item", "name", "product"), "string", "What to add", _one_of(FOODS + PRODUCTS)
            ),
            "count": Param(("count", "quantity", "amount"), "integer", "How many", _between(2, 30)),
        },
        asks=phrase_list("""
            Add {count} {item} to my shopping list. | Put {count} {item} on the list.
            I need {count} {item} on my list.
        """),
        results=rows("""
            {"status": "added", "total": {p}}
            | I added {count} {item}. There are {p} things on the list.
            {"ok": true} | I added {count} {item} to the list.
        """),
        extras=lambda rng: {"p": rng.randint(1, 40)},
    ),
)
