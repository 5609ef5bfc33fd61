"""What a client's program tries and says, in Python: each ``feature`` once, then one line of JSON.

The programs run in environments of their own, where nothing of the project is installed.
"""

import asyncio
import inspect
import json
import os
import traceback
import urllib.request
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

URL = os.environ["SLUICE_URL"]
KEY = os.environ["SLUICE_KEY"]
MODEL = "demo"
HELLO = "Hello!"
WEATHER = "What is the weather in Oslo?"
PERSON = "Extract as JSON: Anna is 31 years old."
RESULT = '{"temperature_c": 7}'
"""What the function ``get_weather`` answers."""

with urllib.request.urlopen(f"{URL}/openapi.json") as document:
    _paths = set(json.load(document)["paths"])
_features: dict[str, Callable[[], Any]] = {}


def feature(function: Callable[[], Any]) -> Callable[[], Any]:
    """Have ``run`` try a function, which raises if the client cannot do what its name says."""
    _features[function.__name__] = function
    return function


def run(*packages: str) -> None:
    """Try all features, and say how each went: a traceback, or nothing if it went well."""
    went = {}
    for name, function in _features.items():
        if name in ("embeddings", "rerank", "batch") and not serves(name):
            continue
        try:
            made = function()
            if inspect.isawaitable(made):
                asyncio.run(_within_time(made))
        except Exception:
            went[name] = traceback.format_exc()[-3000:]
        else:
            went[name] = ""
    print(json.dumps({"versions": {name: version(name) for name in packages}, "features": went}))


def serves(name: str) -> bool:
    return "/v1/batches" in _paths if name == "batch" else embedding_model() is not None


def embedding_model() -> str | None:
    """The demo's, which is the one that is not for chats; None if it has none."""
    request = urllib.request.Request(f"{URL}/v1/models", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request) as answer:
        names = [model["id"] for model in json.load(answer)["data"]]
    return next((name for name in names if name != MODEL), None)


async def _within_time(made: Any) -> None:
    await asyncio.wait_for(made, 120)
