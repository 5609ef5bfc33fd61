"""Tools of MCP servers in responses: real servers, OpenAI's own package, the engine double."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.mcp.servers import Weather, on_a_port
from tests.gateway.serving import MODEL, Gateway, served_double, until

pytestmark = pytest.mark.asyncio


def call(name: str = "get_weather", city: str = "Oslo") -> str:
    arguments = json.dumps({"city": city})
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


class Model:
    """Says one text after the other."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)

    def __call__(self, prompt: str) -> Play:
        return Play(text=self.texts.pop(0))


class Place:
    """A gateway whose tenant may use a server."""

    def __init__(self, gateway: Gateway, double: EngineDouble, weather: Weather, url: str) -> None:
        self.gateway = gateway
        self.double = double
        self.weather = weather
        self.url = f"{url}/mcp"
        self.client: AsyncOpenAI

    def tool(self, **fields: Any) -> Any:
        usual = {"server_label": "w", "server_url": self.url, "require_approval": "never"}
        return {"type": "mcp", **usual, **fields}

    async def ask(self, *texts: str, **fields: Any) -> Any:
        self.double.script = Model(*texts)
        usual: dict[str, Any] = {"model": MODEL, "input": "Is it cold?", "tools": [self.tool()]}
        return await self.client.responses.create(**usual | fields)


@pytest_asyncio.fixture
async def place(model_dir: Path) -> AsyncIterator[Place]:
    weather = Weather()
    async with (
        served_double(model_dir, max_model_len=65_536) as (gateway, double),
        on_a_port(weather.app()) as url,
    ):
        place = Place(gateway, double, weather, url)
        await gateway.store.allow_mcp_server(gateway.tenant.id, place.url, allow_private=True)
        key = await gateway.key("responses")
        async with gateway.openai(api_key=key) as client:
            place.client = client
            yield place


def kinds(response: Any) -> list[str]:
    return [item.type for item in response.output]


async def test_the_model_calls_a_tool_and_goes_on(place: Place) -> None:
    response = await place.ask(call(), "Seven degrees.")
    assert response.status == "completed"
    assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
    listed, called, _ = response.output
    assert [tool.name for tool in listed.tools] == ["get_weather", "fail", "wait", "long"]
    assert (called.name, called.server_label, called.status) == ("get_weather", "w", "completed")
    assert json.loads(called.arguments) == {"city": "Oslo"}
    assert (called.output, called.error) == ("It is 7 degrees in Oslo.", None)
    assert response.output_text == "Seven degrees."
    assert place.weather.asked == ["Oslo"]
    assert "It is 7 degrees in Oslo." in place.double.prompt(1)
    sums = await place.gateway.usage(2)  # a row for each turn
    assert sums.completion_tokens == response.usage.output_tokens
    assert sums.prompt_tokens == response.usage.input_tokens


async def test_events_come_in_openais_order_and_make_the_response(place: Place) -> None:
    place.double.script = Model("Let me see. " + call(), "Seven degrees.")
    types: list[str] = []
    async with place.client.responses.stream(
        model=MODEL, input="Is it cold?", tools=[place.tool()]
    ) as stream:
        async for event in stream:
            if not types or types[-1] != event.type:
                types.append(event.type)
        response: Any = await stream.get_final_response()
    about_tools = [one for one in types if "mcp" in one]
    assert about_tools == [
        "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.completed",
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
    ]
    assert kinds(response) == ["mcp_list_tools", "message", "mcp_call", "message"]
    stored: Any = await place.client.responses.retrieve(response.id)
    assert [item.id for item in stored.output] == [item.id for item in response.output]
    assert types[-1] == "response.completed"


async def test_a_call_waits_until_its_client_allows_it(place: Place) -> None:
    tools = [place.tool(require_approval="always")]
    first = await place.ask(call(), tools=tools)
    assert kinds(first) == ["mcp_list_tools", "mcp_approval_request"]
    assert place.weather.asked == []
    request = first.output[1]
    answer = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    told = await place.ask("Cold.", input=[answer], previous_response_id=first.id, tools=tools)
    assert kinds(told) == ["mcp_call", "message"]  # the tools are known already
    assert told.output[0].approval_request_id == request.id
    assert told.output[0].output == "It is 7 degrees in Oslo."
    assert place.weather.asked == ["Oslo"]
    # What was carried out is not carried out again.
    again = await place.ask("Yes.", input="Sure?", previous_response_id=told.id, tools=tools)
    assert kinds(again) == ["message"]
    assert place.weather.asked == ["Oslo"]


async def test_arguments_that_would_hold_up_the_event_loop_are_not_decoded(place: Place) -> None:
    many = f'{{"city": "Oslo", "more": [{"9e9," * 9000}1]}}'
    said = f'<tool_call>\n{{"name": "get_weather", "arguments": {many}}}\n</tool_call>'
    with pytest.raises(openai.APIStatusError, match="4096 numbers with an exponent"):
        await place.ask(said, max_output_tokens=40_000)
    # A client may send a request for its approval itself.
    request = {"type": "mcp_approval_request", "id": "mcpr_own", "server_label": "w"}
    request |= {"name": "get_weather", "arguments": many}
    answer = {"type": "mcp_approval_response", "approval_request_id": "mcpr_own", "approve": True}
    with pytest.raises(openai.APIStatusError, match="4096 numbers with an exponent"):
        await place.ask("", input=[request, answer])
    assert place.weather.asked == []


async def test_a_call_that_is_not_allowed_is_told_to_the_model(place: Place) -> None:
    tools = [place.tool(require_approval={"never": {"tool_names": ["wait"]}})]
    first = await place.ask(call(), tools=tools)
    answer = {
        "type": "mcp_approval_response",
        "approval_request_id": first.output[1].id,
        "approve": False,
        "reason": "Too expensive.",
    }
    told = await place.ask(
        "As you like.", input=[answer], previous_response_id=first.id, tools=tools
    )
    assert kinds(told) == ["message"]
    assert "did not allow this call. Too expensive." in place.double.prompt()
    assert place.weather.asked == []
    with pytest.raises(openai.BadRequestError, match="no such request"):
        await place.ask("", input=[answer | {"approval_request_id": "mcpr_x"}], tools=tools)


async def test_tools_are_narrowed(place: Place) -> None:
    one = await place.ask("Hm.", tools=[place.tool(allowed_tools=["get_weather"])])
    assert [tool.name for tool in one.output[0].tools] == ["get_weather"]
    assert '"fail"' not in place.double.prompt()
    reads = await place.ask("Hm.", tools=[place.tool(allowed_tools={"read_only": True})])
    assert [tool.name for tool in reads.output[0].tools] == ["get_weather"]
    forced = await place.ask(
        call(), "Cold.", tool_choice={"type": "mcp", "server_label": "w", "name": "get_weather"}
    )
    assert kinds(forced) == ["mcp_list_tools", "mcp_call", "message"]
    function = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
    both = await place.ask(call("w_get_weather"), "Cold.", tools=[function, place.tool()])
    assert both.output[1].name == "get_weather"


async def test_what_fails_is_told_to_the_model(place: Place) -> None:
    response = await place.ask(call("fail"), call("long"), "It failed.")
    _, failed, too_long, _ = response.output
    assert (failed.status, failed.error.type) == ("failed", "mcp_tool_execution_error")
    assert too_long.error.type == "http_error"
    assert "more than 1048576 bytes" in too_long.error.message
    assert "The call failed" in place.double.prompt()


async def test_calls_are_bounded(place: Place) -> None:
    """By ``max_tool_calls``; then the model must answer."""
    both = call(city="Oslo") + "\n" + call(city="Rome")
    response = await place.ask(both, "Cold.", max_tool_calls=1)
    assert kinds(response) == ["mcp_list_tools", "mcp_call", "mcp_call", "message"]
    assert place.weather.asked == ["Oslo"]
    assert "No further call" in str(response.output[2].error)
    assert "get_weather" not in place.double.prompt().partition("<|im_start|>user")[0]
    limited = await place.ask(call(), "x", max_output_tokens=len(call()) // 2)
    assert limited.usage.output_tokens <= len(call()) // 2


async def test_functions_of_the_client_end_the_response(place: Place) -> None:
    function = {"type": "function", "name": "ask_user", "parameters": {"type": "object"}}
    both = call() + "\n" + call("ask_user")
    response = await place.ask(both, tools=[place.tool(), function])
    assert kinds(response) == ["mcp_list_tools", "mcp_call", "function_call"]
    assert response.output[1].output == "It is 7 degrees in Oslo."


async def test_servers_that_are_not_allowed_are_not_asked(place: Place) -> None:
    for url in (place.url + "2", "http://169.254.169.254/"):
        with pytest.raises(openai.PermissionDeniedError, match="sluice mcp allow"):
            await place.ask("x", tools=[place.tool(server_url=url)])
    store, tenant = place.gateway.store, place.gateway.tenant
    (server,) = await store.list_mcp_servers(tenant.id)
    await store.allow_mcp_server(tenant.id, place.url)  # at public addresses only
    with pytest.raises(openai.APIStatusError, match="not a public address") as caught:
        await place.ask("x")
    assert caught.value.status_code == 424
    await store.delete_mcp_server(tenant.id, server.id)
    with pytest.raises(openai.PermissionDeniedError):
        await place.ask("x")
    assert place.double.requests == []


async def test_secrets_are_sent_and_not_shown(place: Place) -> None:
    tool = place.tool(authorization="s3cret", headers={"x-team": "blue"})
    response = await place.ask("Hm.", tools=[tool])
    assert "s3cret" not in response.model_dump_json()
    assert response.tools[0].server_url == place.url
    for headers in ({"Host": "x"}, {"a b": "c"}, {"x": "a\nb"}, {"Authorization": "x"}):
        with pytest.raises(openai.BadRequestError) as caught:
            await place.ask("x", tools=[place.tool(headers=headers, authorization="y")])
        assert caught.value.param in ("tools[0].headers", "tools[0].authorization")


async def test_cancelling_ends_the_call(place: Place) -> None:
    response = await place.ask(call("wait"), background=True)
    await place.weather.begun.wait()
    cancelled: Any = await place.client.responses.cancel(response.id)
    assert cancelled.status == "cancelled"
    assert cancelled.output[-1].status == "incomplete"
    await until(lambda: place.weather.num_cancelled == 1)
    assert (await place.gateway.usage(1)).requests == 1


async def test_one_that_is_cancelled_as_a_turn_begins_has_no_further_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    responses = place.gateway.app.state.services.responses
    admit = responses._admission.admit

    async def admit_and_cancel(*asked: Any, **options: Any) -> Any:
        for run in responses._running.values():
            run.cancel()
        return await admit(*asked, **options)

    monkeypatch.setattr(responses._admission, "admit", admit_and_cancel)
    response = await place.ask(call(), "Seven degrees. " * 50)
    assert response.status == "cancelled"
    assert response.output[1].output == "It is 7 degrees in Oslo."
    assert len(response.output_text) < len("Seven degrees. " * 50)


async def test_a_client_that_leaves_ends_the_call(place: Place) -> None:
    asking = asyncio.create_task(place.ask(call("wait")))
    await place.weather.begun.wait()
    asking.cancel()
    await until(lambda: place.weather.num_cancelled == 1)
    assert (await place.gateway.usage(1)).requests == 1
    await until(lambda: not place.gateway.app.state.services.responses._running)


async def test_a_shutdown_ends_the_call(place: Place) -> None:
    place.double.script = Model(call("wait"))
    stream = await place.client.responses.create(
        model=MODEL, input="Hi", tools=[place.tool()], stream=True
    )
    await place.weather.begun.wait()
    place.gateway.server.should_exit = True  # waits for requests, then aborts them
    last: Any = [event async for event in stream][-1]
    assert last.type == "response.failed"
    assert "shutting down" in last.response.error.message
    await until(lambda: place.weather.num_cancelled == 1)
