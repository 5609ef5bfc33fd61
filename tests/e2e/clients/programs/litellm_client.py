"""LiteLLM, as a provider like OpenAI's and as Anthropic's."""

import json

import litellm
from pydantic import BaseModel
from report import HELLO, KEY, MODEL, PERSON, RESULT, URL, WEATHER, embedding_model, feature, run

OPENAI = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": KEY}
ANTHROPIC = {"model": f"anthropic/{MODEL}", "api_base": URL, "api_key": KEY, "max_tokens": 200}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


class Person(BaseModel):
    name: str
    age: int


def user(text):
    return {"role": "user", "content": text}


@feature
def chat():
    for at in (OPENAI, ANTHROPIC):
        answer = litellm.completion(messages=[user(HELLO)], **at)
        assert answer.choices[0].message.content
        assert answer.usage.completion_tokens > 0


@feature
def stream():
    for at in (OPENAI, ANTHROPIC):
        chunks = litellm.completion(messages=[user(HELLO)], stream=True, **at)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


@feature
def tools():
    for at in (OPENAI, ANTHROPIC):
        messages = [user(WEATHER)]
        asked = {"tools": [TOOL], "temperature": 0, **at}
        message = litellm.completion(messages=messages, **asked).choices[0].message
        (call,) = message.tool_calls
        assert json.loads(call.function.arguments) == {"city": "Oslo"}
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
        assert litellm.completion(messages=messages, **asked).choices[0].message.content


@feature
def structured():
    answer = litellm.completion(
        messages=[user(PERSON)], response_format=Person, temperature=0, **OPENAI
    )
    Person.model_validate_json(answer.choices[0].message.content)


@feature
def embeddings():
    answer = litellm.embedding(
        input=["a fox", "a cat"], **OPENAI | {"model": f"openai/{embedding_model()}"}
    )
    assert len(answer.data) == 2


@feature
def errors():
    for at in (OPENAI | {"model": "openai/gpt-9"}, ANTHROPIC | {"model": "anthropic/claude-9"}):
        try:
            litellm.completion(messages=[user(HELLO)], **at)
        except litellm.NotFoundError:
            continue
        raise AssertionError("an unknown model was taken")


run("litellm")
