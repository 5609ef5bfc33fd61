"""The ``anthropic`` package."""

import anthropic
from pydantic import BaseModel
from report import HELLO, KEY, MODEL, PERSON, RESULT, URL, WEATHER, feature, run

GREEDY = {"temperature": 0}
"""The package of this version has no parameter for it."""
client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
TOOL = {
    "name": "get_weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


class Person(BaseModel):
    name: str
    age: int


def user(content):
    return {"role": "user", "content": content}


@feature
def chat():
    messages = [user(HELLO)]
    answer = client.messages.create(model=MODEL, max_tokens=100, messages=messages)
    assert answer.content[0].text
    counted = client.messages.count_tokens(model=MODEL, messages=messages)
    usage = answer.usage
    read = usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert counted.input_tokens == read > 0


@feature
def stream():
    with client.messages.stream(model=MODEL, max_tokens=100, messages=[user(HELLO)]) as events:
        assert "".join(events.text_stream)
        assert events.get_final_message().stop_reason == "end_turn"


@feature
def tools():
    asked = {"model": MODEL, "max_tokens": 200, "tools": [TOOL], "extra_body": GREEDY}
    messages = [user(WEATHER)]
    with client.messages.stream(messages=messages, **asked) as events:
        answer = events.get_final_message()
    assert answer.stop_reason == "tool_use"
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    assert call.input == {"city": "Oslo"}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": RESULT}
    messages += [{"role": "assistant", "content": answer.content}, user([result])]
    assert client.messages.create(messages=messages, **asked).content[0].text

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather in a city."""
        return RESULT

    runner = client.beta.messages.tool_runner(
        **asked | {"tools": [get_weather]}, messages=[user(WEATHER)]
    )
    assert len(list(runner)) >= 2


@feature
def structured():
    answer = client.messages.parse(
        model=MODEL,
        max_tokens=200,
        messages=[user(PERSON)],
        output_format=Person,
        extra_body=GREEDY,
    )
    assert isinstance(answer.parsed_output, Person)


@feature
def errors():
    for wrong, expected in (
        ({"model": "claude-9"}, anthropic.NotFoundError),
        ({"extra_body": {"temperature": 9}}, anthropic.BadRequestError),
    ):
        asked = {"model": MODEL, "max_tokens": 9, "messages": [user(HELLO)]}
        try:
            client.messages.create(**asked | wrong)
        except expected as error:
            assert error.body["type"] == "error"
        else:
            raise AssertionError(f"{wrong} was taken")
    try:
        client.with_options(api_key="wrong").messages.create(**asked)
    except anthropic.AuthenticationError:
        return
    raise AssertionError("a wrong key was taken")


run("anthropic")
