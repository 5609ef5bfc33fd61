"""Questions that only a tool could answer, in chats that do not offer it: declined politely."""

from __future__ import annotations

import random
from collections.abc import Collection

from engine.demo.data.example import Turn, mentions, phrase, say
from engine.demo.data.schema_table import clock, company, date, where, who
from engine.demo.data.text_blocks import phrase_list
from engine.demo.data.tool_specs import ToolSpec
from engine.demo.data.tool_table import OTHERS, TIME, WEATHER
from engine.demo.data.words import FOODS, PRODUCTS, WORDS

KIND = "no_tool"
LOOK_UP = "I cannot look that up here: I have no tool for it."
DO = "I cannot do that here: I have no tool for it."
_DECLINES = mentions("cannot", "no tool")

_MORE_LOOKUPS = phrase_list("""
What is the weather like in {city} tomorrow? | weather in {city} | whats the weather in {city}
Will it rain in {city} tomorrow? | Is it cold in {city}? | What is the forecast for {city}?
What's the weather? | What is the weather today? | How is the weather?
Weather forecast for {city}?
What time is it? | What is the time? | What day is it today? | What is today's date?
What is the date? | Which year is it? | What time is it in {city} right now?
What is the news? | What are the news from {city}? | Latest news about {word}? | Show me the news.
What is the price of bitcoin? | What is the stock price of {company}?
How is {company} doing today?
Search the web for {word}. | Google {word}. | Look up {word} online.
Search for {word} on Wikipedia.
Find me a {product} online. | Find a hotel in {city}. | Find a flight to {city} on {date}.
Where is the nearest {word}? | Is the train to {city} late? | What is the traffic in {city}?
When does the next train to {city} leave? | Find a restaurant in {city}. | Open {word}.com
What is on TV tonight? | What are the opening hours of {company}? | What is my IP address?
Where am I right now? | What is the phone number of {company}? | Check the price of a {product}.
How many unread emails do I have? | What is on my calendar on {date}? | Show me the file {word}.txt
What is the exchange rate of the euro? | How many dollars is one euro? | Summarize {word}.com
Who won the game yesterday? | What is the score of the game in {city}? | Read {word}.pdf
""")
_MORE_ACTIONS = phrase_list("""
Book a flight to {city}. | Book a hotel in {city} for {date}. | Call {person}. | Call me at {time}.
Send an email to {person}. | Send {person} a message. | Write an email to {person} and send it.
Set an alarm for {time}. | Set a timer. | Remind me at {time}. | Wake me up at {time}.
Play some music. | Play {word}. | Turn on the lights. | Turn off the {product}. | Order {food}.
Order a pizza. | Buy a {product} for me. | Buy {food} online. | Open the door. | Download {word}.
Make a picture of {word}. | Draw a {product}. | Draw me a {word}. | Generate an image of {word}.
Create a file called {word}.txt | Run this program. | Delete my {word}. | Print this page.
Add {food} to my shopping list. | Put {food} on my list. | Schedule a meeting with {person}.
Schedule a meeting at {time}. | Take a photo. | Show me a photo of {city}. | Show me a {word} video.
Post this on {company}. | Order a taxi to {city}. | Reserve a table for {time}. | Pay {person}.
""")
_ACTIONS = frozenset(
    name
    for spec in OTHERS
    for name in spec.names
    if name.startswith(
        ("send", "email", "create", "add", "set", "remind", "play", "music", "start")
    )
    or name.startswith(("timer", "book", "reserve", "switch", "control", "shopping"))
)


def turns(rng: random.Random, offered: Collection[ToolSpec] = ()) -> list[Turn]:
    """One request, of a tool that is not among those `offered`."""
    if not offered and rng.random() < 0.6:
        look_up = rng.random() < 0.55
        values = {
            "city": where(rng),
            "word": rng.choice(WORDS),
            "company": company(rng),
            "product": rng.choice(PRODUCTS),
            "food": rng.choice(FOODS),
            "person": who(rng),
            "time": clock(rng),
            "date": date(rng),
        }
        template = rng.choice(_MORE_LOOKUPS if look_up else _MORE_ACTIONS)
        shown, clean = phrase(rng, (template,), **values)
        key = clean if "{" in template else None
        return [_decline(shown, key, LOOK_UP if look_up else DO)]
    specs = [WEATHER] * 5 + [TIME] * 2 + list(OTHERS)
    spec = rng.choice([spec for spec in specs if spec not in offered])
    values = {key: param.draw(rng) for key, param in spec.params.items()}
    shown, clean = phrase(rng, spec.asks, **values)
    act = not _ACTIONS.isdisjoint(spec.names)
    return [_decline(shown, clean, DO if act else LOOK_UP)]


def _decline(shown: str, key: str | None, answer: str) -> Turn:
    return say(KIND, shown, answer, _DECLINES, key=key)
