"""LangChain over ``langchain-anthropic``."""

import anthropic
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel
from report import HELLO, KEY, MODEL, PERSON, RESULT, URL, WEATHER, feature, run

AT = {"base_url": URL, "api_key": KEY, "max_tokens": 200, "max_retries": 0}
model = ChatAnthropic(model=MODEL, temperature=0, **AT)


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return RESULT


@feature
def chat():
    answer = model.invoke(HELLO)
    assert answer.content
    assert answer.usage_metadata["output_tokens"] > 0


@feature
def stream():
    assert "".join(chunk.text for chunk in model.stream(HELLO))


@feature
def tools():
    bound = model.bind_tools([get_weather])
    messages = [HumanMessage(WEATHER)]
    asked = bound.invoke(messages)
    (call,) = asked.tool_calls
    assert call["args"] == {"city": "Oslo"}, call
    messages += [asked, ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])]
    assert bound.invoke(messages).text


@feature
def structured():
    found = model.with_structured_output(Person).invoke(PERSON)
    assert isinstance(found, Person), found


@feature
def errors():
    try:
        ChatAnthropic(model="claude-9", **AT).invoke(HELLO)
    except anthropic.NotFoundError:
        return
    raise AssertionError("an unknown model was taken")


run("langchain-anthropic", "langchain-core")
