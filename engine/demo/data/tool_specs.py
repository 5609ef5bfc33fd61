"""The tools that chats may offer: names and words vary, so that they are copied, not known."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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

Values = dict[str, Any]


@dataclass(frozen=True)
class Param:
    """One parameter: the names it may go by, its JSON type, how a value is drawn."""

    names: tuple[str, ...]
    type: str
    description: str
    draw: Callable[[random.Random], Any]
    enum: tuple[str, ...] = ()
    optional: bool = False


@dataclass(frozen=True)
class ToolSpec:
    """A kind of tool. `asks` hold canonical parameter names; `asks_more` use the optional ones.

    `results` are pairs of what the tool returns (JSON with placeholders, values not quoted by us)
    and what the model then says.
    """

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    params: dict[str, Param]
    asks: tuple[str, ...]
    results: tuple[tuple[str, str], ...]
    extras: Callable[[random.Random], Values] = lambda rng: {}
    asks_more: tuple[str, ...] = ()
    follow_ups: tuple[str, ...] = ()


def _city(rng: random.Random) -> str:
    return rng.choice(CITIES) if rng.random() < 0.85 else made_up(rng).capitalize()


def _words(rng: random.Random, low: int, high: int) -> str:
    return " ".join(any_word(rng) for _ in range(rng.randint(low, high)))


def _clock(rng: random.Random) -> str:
    return f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"


_UNITS = ("celsius", "fahrenheit")
_CURRENCIES = ("EUR", "USD", "GBP", "JPY", "CHF", "CAD", "AUD", "CNY", "INR", "SEK")
_SKIES = ("sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "stormy", "clear")
_LANGUAGES = ("French", "Spanish", "German", "Italian", "Japanese", "Polish", "Turkish", "Dutch")
_ROOMS = ("kitchen", "bedroom", "bathroom", "living room", "garage", "office", "hall")

CITY = Param(("city", "city", "location", "place"), "string", "The city", _city)

WEATHER = ToolSpec(
    ("get_weather", "get_weather", "weather", "current_weather", "fetch_weather", "get_current_weather"),
    ("Get the current weather in a city", "Current weather for a location", "Returns the weather of a city.",
     "Look up the weather"),
    {"city": CITY, "unit": Param(("unit", "units"), "string", "Temperature unit", lambda r: r.choice(_UNITS), _UNITS, True)},
    ("What is the weather in {city}?", "What's the weather like in {city}?", "How is the weather in {city}?",
     "Weather in {city}?", "Is it warm in {city}?", "Tell me the weather in {city}.", "Is it raining in {city}?",
     "Do I need a coat in {city} today?", "How warm is it in {city}?", "weather {city}",
     "Can you check the weather in {city}?", "What is the temperature in {city}?"),
    (('{"temperature": {t}, "condition": "{sky}"}', "It is {t} °C and {sky} in {city}."),
     ('{"city": "{city}", "temperature_c": {t}, "conditions": "{sky}"}', "It is {t} °C and {sky} in {city}."),
     ('{"temp": {t}, "unit": "celsius", "description": "{sky}"}', "It is {t} °C and {sky} in {city}."),
     ('{"temperature": {t}, "weather": "{sky}", "wind_kmh": {w}}', "It is {t} °C and {sky} in {city}, with {w} km/h of wind."),
     ('{"location": "{city}", "temperature": {t}}', "It is {t} °C in {city}."),
     ("{t}°C, {sky}", "It is {t} °C and {sky} in {city}."),
     ("{sky}, {t} degrees", "It is {t} °C and {sky} in {city}.")),
    lambda r: {"t": r.randint(-15, 40), "sky": r.choice(_SKIES), "w": r.randint(0, 90)},
    ("What is the weather in {city} in {unit}?", "Temperature in {city} in {unit}, please.",
     "How warm is it in {city}? Use {unit}.", "Give me the weather of {city} in degrees {unit}."),
    ("And in {city}?", "What about {city}?", "And {city}?", "How about {city}?"),
)  # fmt: skip

TIME = ToolSpec(
    ("get_time", "get_time", "current_time", "time_in_city", "get_local_time"),
    ("Get the current time in a city", "Local time of a place", "Returns the time in a city."),
    {"city": CITY},
    ("What time is it in {city}?", "What is the time in {city}?", "Time in {city}?", "Tell me the time in {city}.",
     "How late is it in {city}?", "What's the local time in {city}?", "Do you know what time it is in {city}?"),
    (('{"time": "{time}"}', "It is {time} in {city}."),
     ('{"city": "{city}", "local_time": "{time}"}', "It is {time} in {city}."),
     ('{"time": "{time}", "day": "{day}"}', "It is {time} on {day} in {city}."),
     ("{time}", "It is {time} in {city}.")),
    lambda r: {"time": _clock(r), "day": r.choice(DAYS)},
    follow_ups=("And in {city}?", "What about {city}?", "And {city}?"),
)  # fmt: skip

OTHERS = (
    ToolSpec(
        ("search_products", "search", "find_product", "product_search"),
        ("Search the shop for products", "Find products by name", "Searches the catalog."),
        {"query": Param(("query", "q", "product", "name"), "string", "What to search for",
                        lambda r: f"{r.choice(COLOURS)} {r.choice(PRODUCTS)}" if r.random() < 0.6 else r.choice(PRODUCTS)),
         "max_price": Param(("max_price", "price_limit", "max"), "integer", "Highest price", lambda r: r.randint(5, 900), (), True)},
        ("Find a {query}.", "I am looking for a {query}.", "Search for a {query}.", "Do you sell a {query}?",
         "Show me a {query}.", "I want to buy a {query}.", "Can you search for a {query}?"),
        (('{"results": [{"name": "{query}", "price": {p}}]}', "I found a {query} for {p} dollars."),
         ('{"name": "{query}", "price": {p}, "in_stock": true}', "I found a {query} for {p} dollars."),
         ('{"results": []}', "I found nothing for {query}.")),
        lambda r: {"p": r.randint(3, 900)},
        ("Find a {query} under {max_price} dollars.", "I want a {query} for less than {max_price} dollars.",
         "Search for a {query}, at most {max_price} dollars.", "Is there a {query} below {max_price}?"),
    ),
    ToolSpec(
        ("convert_currency", "convert", "currency_converter", "exchange"),
        ("Convert an amount of money", "Converts money from one currency to another"),
        {"amount": Param(("amount", "value"), "number", "The amount", lambda r: r.randint(1, 999)),
         "from": Param(("from", "from_currency", "source"), "string", "Currency code to convert from", lambda r: r.choice(_CURRENCIES[:5])),
         "to": Param(("to", "to_currency", "target"), "string", "Currency code to convert to", lambda r: r.choice(_CURRENCIES[5:]))},
        ("Convert {amount} {from} to {to}.", "How much is {amount} {from} in {to}?", "What are {amount} {from} in {to}?",
         "{amount} {from} in {to}?", "Change {amount} {from} into {to}, please."),
        (('{"result": {p}}', "{amount} {from} are {p} {to}."), ('{"amount": {p}, "currency": "{to}"}', "{amount} {from} are {p} {to}."),
         ("{p}", "{amount} {from} are {p} {to}.")),
        lambda r: {"p": r.randint(1, 9999)},
    ),
    ToolSpec(
        ("send_email", "send_message", "email", "send_mail"),
        ("Send a message to a person", "Sends an email", "Write to somebody"),
        {"to": Param(("to", "recipient", "person"), "string", "Who gets it", lambda r: r.choice(FIRST_NAMES)),
         "text": Param(("text", "body", "message", "content"), "string", "The text", lambda r: _words(r, 1, 6))},
        ('Send {to} the message "{text}"', 'Write to {to}: {text}', "Tell {to}: {text}", "Send a mail to {to} saying {text}",
         'Email {to} "{text}"', "Message {to}: {text}"),
        (('{"status": "sent"}', "I sent your message to {to}."), ('{"ok": true}', "I sent your message to {to}."),
         ("sent", "I sent your message to {to}."), ('{"error": "address not found"}', "The message could not be sent: address not found.")),
    ),
    ToolSpec(
        ("create_reminder", "add_reminder", "set_reminder", "remind"),
        ("Create a reminder", "Remind the user of something at a time"),
        {"text": Param(("text", "title", "task", "what"), "string", "What to remember", lambda r: f"{r.choice(('call', 'buy', 'visit', 'find', 'bring', 'clean'))} {_words(r, 1, 2)}"),
         "time": Param(("time", "at", "when"), "string", "When", _clock)},
        ("Remind me to {text} at {time}.", "Set a reminder to {text} at {time}.", "At {time}, remind me to {text}.",
         "I must {text} at {time}, please remind me.", "Reminder at {time}: {text}"),
        (('{"status": "created"}', "I will remind you to {text} at {time}."), ('{"ok": true, "id": {p}}', "I will remind you to {text} at {time}.")),
        lambda r: {"p": r.randint(1, 999)},
    ),
    ToolSpec(
        ("get_stock_price", "stock_price", "get_quote"),
        ("Get the price of a stock", "Latest price of a share"),
        {"symbol": Param(("symbol", "ticker"), "string", "The ticker symbol", lambda r: "".join(r.choices("ABCDEFGHIKLMNOPRSTUVXYZ", k=r.randint(3, 4))))},
        ("What is the price of {symbol}?", "Price of {symbol}?", "How much is {symbol} stock?", "What is the stock price of {symbol}?",
         "Get a quote for {symbol}."),
        (('{"price": {p}}', "The price of {symbol} is {p}."), ('{"symbol": "{symbol}", "price": {p}, "currency": "USD"}', "The price of {symbol} is {p} USD.")),
        lambda r: {"p": r.randint(1, 999)},
        follow_ups=("And {symbol}?", "What about {symbol}?"),
    ),
    ToolSpec(
        ("translate", "translate_text", "translator"),
        ("Translate a text", "Translates text into another language"),
        {"text": Param(("text", "sentence", "input"), "string", "The text", lambda r: _words(r, 1, 5)),
         "language": Param(("language", "target", "to"), "string", "Target language", lambda r: r.choice(_LANGUAGES))},
        ('Translate "{text}" into {language} with the tool.', 'Use the translator: "{text}" to {language}.', 'Call the translator for "{text}" in {language}.'),
        (('{"translation": "{out}"}', 'In {language} it is "{out}".'), ("{out}", 'In {language} it is "{out}".')),
        lambda r: {"out": f"{made_up(r)} {made_up(r)}"},
    ),
    ToolSpec(
        ("play_music", "play", "play_song", "music_player"),
        ("Play a song or an artist", "Plays music"),
        {"query": Param(("query", "song", "title"), "string", "What to play", lambda r: f"{r.choice(WORDS)} {r.choice(WORDS)}" if r.random() < 0.6 else person(r))},
        ("Play {query}.", "Play some {query}.", "I want to hear {query}.", "Put on {query}, please.", "Can you play {query}?"),
        (('{"status": "playing"}', "Now playing {query}."), ('{"ok": true}', "Now playing {query}."), ('{"error": "not found"}', "I could not play {query}: not found.")),
    ),
    ToolSpec(
        ("set_timer", "start_timer", "timer"),
        ("Start a timer", "Sets a timer for some minutes"),
        {"minutes": Param(("minutes", "duration", "length"), "integer", "Minutes", lambda r: r.randint(1, 120))},
        ("Set a timer for {minutes} minutes.", "Timer for {minutes} minutes, please.", "Start a {minutes} minute timer.",
         "Wake me in {minutes} minutes.", "Tell me when {minutes} minutes are over."),
        (('{"status": "started"}', "The timer is set for {minutes} minutes."), ('{"ok": true}', "The timer is set for {minutes} minutes.")),
    ),
    ToolSpec(
        ("book_table", "reserve_table", "restaurant_booking"),
        ("Book a table in a restaurant", "Reserve a table"),
        {"restaurant": Param(("restaurant", "name", "place"), "string", "Name of the restaurant", lambda r: f"{r.choice(('Casa', 'Cafe', 'Chez', 'The'))} {r.choice(FIRST_NAMES)}"),
         "people": Param(("people", "guests", "party_size"), "integer", "How many people", lambda r: r.randint(1, 12)),
         "time": Param(("time", "at"), "string", "When", _clock)},
        ("Book a table at {restaurant} for {people} people at {time}.", "Reserve {people} seats at {restaurant} for {time}.",
         "I need a table for {people} at {restaurant} at {time}.", "Table for {people} at {time} in {restaurant}, please."),
        (('{"status": "confirmed", "code": "{code}"}', "Your table at {restaurant} is confirmed. The code is {code}."),
         ('{"error": "fully booked"}', "The table could not be booked: fully booked.")),
        lambda r: {"code": f"{r.choice('ABCDEFGH')}{r.randint(100, 999)}"},
    ),
    ToolSpec(
        ("get_distance", "distance", "route"),
        ("Distance between two cities", "Get the distance from one place to another"),
        {"from": Param(("from", "origin", "start"), "string", "Start", _city), "to": Param(("to", "destination", "end"), "string", "End", _city)},
        ("How far is it from {from} to {to}?", "Distance from {from} to {to}?", "How many kilometres are between {from} and {to}?",
         "What is the distance between {from} and {to}?"),
        (('{"km": {p}}', "It is {p} km from {from} to {to}."), ('{"distance_km": {p}, "hours": {h}}', "It is {p} km from {from} to {to}.")),
        lambda r: {"p": r.randint(20, 9999), "h": r.randint(1, 30)},
    ),
    ToolSpec(
        ("switch_light", "set_light", "control_light"),
        ("Switch a light on or off", "Controls the light of a room"),
        {"room": Param(("room", "where"), "string", "The room", lambda r: r.choice(_ROOMS)),
         "state": Param(("state", "mode"), "string", "on or off", lambda r: r.choice(("on", "off")), ("on", "off"))},
        ("Turn {state} the light in the {room}.", "Switch the {room} light {state}.", "Light {state} in the {room}, please.",
         "Please turn the {room} light {state}."),
        (('{"status": "ok"}', "The light in the {room} is {state} now."), ('{"ok": true}', "The light in the {room} is {state} now.")),
    ),
    ToolSpec(
        ("add_to_list", "shopping_list_add", "add_item"),
        ("Add an item to the shopping list", "Puts something on the list"),
        {"item": Param(("item", "name", "product"), "string", "What to add", lambda r: r.choice(FOODS + PRODUCTS)),
         "count": Param(("count", "quantity", "amount"), "integer", "How many", lambda r: r.randint(2, 30))},
        ("Add {count} {item} to my shopping list.", "Put {count} {item} on the list.", "I need {count} {item} on my list."),
        (('{"status": "added", "total": {p}}', "I added {count} {item}. There are {p} things on the list."), ('{"ok": true}', "I added {count} {item} to the list.")),
        lambda r: {"p": r.randint(1, 40)},
    ),
)  # fmt: skip


def made_up_spec(rng: random.Random) -> ToolSpec:
    """A lookup of something that no other chat knows: only its schema says how to call it."""
    noun = rng.choice(WORDS) if rng.random() < 0.6 else made_up(rng)
    verb = rng.choice(("lookup", "find", "get", "check", "open", "start", "delete", "fetch"))
    param = rng.choice(("id", "name", "query", "key", "code", "number", noun))
    number = param in ("id", "number")
    draw = (lambda r: r.randint(1, 9999)) if number else any_word
    field = rng.choice(("status", "result", "value", "state"))
    return ToolSpec(
        (f"{verb}_{noun}", f"{noun}_{verb}"),
        (f"{verb.capitalize()} a {noun}", f"{verb.capitalize()}s the {noun} with this {param}."),
        {param: Param((param,), "integer" if number else "string", f"The {param}", draw)},
        (f"{verb.capitalize()} the {noun} {{{param}}}.", f"Please {verb} {noun} {{{param}}}.",
         f"{verb} {noun} {{{param}}}", f"Can you {verb} the {noun} with {param} {{{param}}}?",
         f"I want to {verb} the {noun} {{{param}}}."),
        ((f'{{"{field}": "{{out}}"}}', f"The {field} of {noun} {{{param}}} is {{out}}."),
         ("{out}", f"The answer for {noun} {{{param}}} is {{out}}.")),
        lambda r: {"out": any_word(r)},
    )  # fmt: skip
