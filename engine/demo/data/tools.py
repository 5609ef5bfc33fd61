"""Chats with tools: calling one with the right arguments, answering from its result."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.demo.data.example import (
    CallsTools,
    Exact,
    Message,
    Turn,
    fill,
    join_words,
    phrase,
    say,
)
from engine.demo.data.text_blocks import phrase_list
from engine.demo.data.tool_specs import ToolSpec, Values, made_up_spec
from engine.demo.data.tool_table import OTHERS, TIME, WEATHER

CALL = "tool"
ANSWER = "tool_answer"

_IN_TWO_CITIES = phrase_list("""
What is the {what} in {cities}? | Compare the {what} in {cities}. | {what} in {cities}?
Tell me the {what} in {cities}.
""")
_WITHOUT_CITY = phrase_list("""
What is the {what}? | Tell me the {what}. | Can you check the {what}? | {what}?
""")
_WHICH_CITY = phrase_list("{city} | In {city}. | I mean {city}. | {city}, please.")


@dataclass(frozen=True)
class Tool:
    """A tool as one chat offers it: its spec, its name, what each parameter is called."""

    spec: ToolSpec
    name: str
    param_names: dict[str, str]
    schema: dict[str, Any]

    def arguments(self, values: Values) -> Values:
        """The call's arguments in the order of the schema, without those that were not given."""
        return {self.param_names[key]: values[key] for key in self.param_names if key in values}


def draw_tools(rng: random.Random) -> list[Tool]:
    """One to four different tools, the weather among them more often than chance."""
    specs = [*OTHERS, TIME, WEATHER, made_up_spec(rng), made_up_spec(rng)]
    chosen = rng.sample(specs, rng.choice((1, 1, 1, 2, 2, 3, 4)))
    if rng.random() < 0.35 and WEATHER not in chosen:
        chosen[0] = WEATHER
    rng.shuffle(chosen)
    tools = [_tool(rng, spec) for spec in chosen]
    names = {tool.name: tool for tool in tools}
    return list(names.values())


def _tool(rng: random.Random, spec: ToolSpec) -> Tool:
    params = dict(spec.params)
    for key in [key for key, param in params.items() if param.optional and rng.random() < 0.5]:
        del params[key]
    names = {key: rng.choice(param.names) for key, param in params.items()}
    properties: dict[str, Any] = {}
    for key, param in params.items():
        properties[names[key]] = {"type": param.type}
        if rng.random() < 0.7:
            properties[names[key]]["description"] = param.description
        if param.enum:
            properties[names[key]]["enum"] = list(param.enum)
    required = [names[key] for key, param in params.items() if not param.optional]
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if rng.random() < 0.85:
        parameters["required"] = required
    name = rng.choice(spec.names)
    function = {
        "name": name,
        "description": rng.choice(spec.descriptions),
        "parameters": parameters,
    }
    return Tool(spec, name, names, {"type": "function", "function": function})


def turns(rng: random.Random, tools: Sequence[Tool]) -> list[Turn]:
    """One call of one of the tools and the answer from its result, at times a second round."""
    tool = rng.choice(tools)
    if rng.random() < 0.12 and "city" in tool.param_names:
        return _two_calls(rng, tool)
    if rng.random() < 0.08 and "city" in tool.param_names:
        return _asks_back(rng, tool)
    result = _round(rng, tool, tool.spec.asks, more=True)
    while tool.spec.follow_ups and rng.random() < 0.25 and len(result) < 6:
        result += _round(rng, tool, tool.spec.follow_ups)
    return result


def _round(
    rng: random.Random, tool: Tool, asks: Sequence[str], *, more: bool = False, lead: str = ""
) -> list[Turn]:
    values = {key: tool.spec.params[key].draw(rng) for key in tool.param_names}
    optional = [key for key in values if tool.spec.params[key].optional]
    if more and optional and rng.random() < 0.6:
        asks = tool.spec.asks_more
    else:
        values = {key: value for key, value in values.items() if key not in optional}
    shown, clean = phrase(rng, asks, **values)
    call = _call(rng, tool, values)
    check = CallsTools(((tool.name, tool.arguments(values)),))
    inputs = ({"role": "user", "content": lead + shown},)
    first = Turn(CALL, inputs, _calling([call]), check, key=clean)
    result, answer = _result(rng, tool, values)
    return [first, _answering([call], [result], answer, f"{clean} {result}")]


def _call(rng: random.Random, tool: Tool, values: Values) -> Message:
    arguments = json.dumps(tool.arguments(values), ensure_ascii=False)
    function = {"name": tool.name, "arguments": arguments}
    return {"id": f"call_{rng.getrandbits(32):08x}", "type": "function", "function": function}


def _calling(calls: list[Message]) -> Message:
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _result(rng: random.Random, tool: Tool, values: Values) -> tuple[str, str]:
    result, answer = rng.choice(tool.spec.results)
    filled = {**values, **tool.spec.extras(rng)}
    return fill(result, filled), fill(answer, filled)


def _answering(calls: list[Message], results: list[str], answer: str, key: str) -> Turn:
    inputs = tuple(
        {"role": "tool", "tool_call_id": call["id"], "content": result}
        for call, result in zip(calls, results, strict=True)
    )
    return Turn(ANSWER, inputs, {"role": "assistant", "content": answer}, Exact(answer), key)


def _two_calls(rng: random.Random, tool: Tool) -> list[Turn]:
    cities = [tool.spec.params["city"].draw(rng) for _ in range(2)]
    what = "weather" if tool.spec is WEATHER else "time"
    shown, clean = phrase(rng, _IN_TWO_CITIES, what=what, cities=join_words(cities))
    calls = [_call(rng, tool, {"city": city}) for city in cities]
    check = CallsTools(tuple((tool.name, tool.arguments({"city": city})) for city in cities))
    first = Turn(CALL, ({"role": "user", "content": shown},), _calling(calls), check, key=clean)
    told = [_result(rng, tool, {"city": city}) for city in cities]
    answer = " ".join(text for _, text in told)
    results = [result for result, _ in told]
    return [first, _answering(calls, results, answer, f"{clean} {results}")]


def _asks_back(rng: random.Random, tool: Tool) -> list[Turn]:
    """The city is missing: the model asks for it, then calls the tool."""
    what = "weather" if tool.spec is WEATHER else "time"
    shown, _ = phrase(rng, _WITHOUT_CITY, what=what)
    question = say(CALL, shown, "Which city do you mean?")
    return [question, *_round(rng, tool, _WHICH_CITY)]
