"""The ``openai`` package: Chat Completions and Responses."""

import io
import json
import time

import openai
from pydantic import BaseModel
from report import HELLO, KEY, MODEL, PERSON, RESULT, URL, WEATHER, embedding_model, feature, run

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


class Person(BaseModel):
    name: str
    age: int


def user(text):
    return {"role": "user", "content": text}


@feature
def chat():
    answer = client.chat.completions.create(model=MODEL, messages=[user(HELLO)])
    assert answer.choices[0].message.content
    assert answer.usage.total_tokens > 0
    assert client.responses.create(model=MODEL, input=HELLO).output_text


@feature
def stream():
    options = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=[user(HELLO)], stream=True, stream_options=options
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert chunks[-1].usage.completion_tokens > 0
    with client.responses.stream(model=MODEL, input=HELLO) as events:
        kinds = [event.type for event in events]
        assert events.get_final_response().output_text
    assert kinds[-1] == "response.completed"


@feature
def tools():
    function = {"name": "get_weather", "parameters": PARAMETERS}
    asked = {"model": MODEL, "tools": [{"type": "function", "function": function}]}
    messages = [user(WEATHER)]
    with client.chat.completions.stream(messages=messages, temperature=0, **asked) as events:
        for _ in events:
            pass
        message = events.get_final_completion().choices[0].message
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    result = {"role": "tool", "tool_call_id": call.id, "content": RESULT}
    messages += [message, result]
    told = client.chat.completions.create(messages=messages, temperature=0, **asked)
    assert told.choices[0].message.content

    asked = {"model": MODEL, "tools": [{"type": "function", **function, "strict": True}]}
    first = client.responses.create(input=WEATHER, temperature=0, **asked)
    (call,) = [item for item in first.output if item.type == "function_call"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
    told = client.responses.create(
        input=[result], previous_response_id=first.id, temperature=0, **asked
    )
    assert told.output_text


@feature
def structured():
    completion = client.chat.completions.parse(
        model=MODEL, messages=[user(PERSON)], response_format=Person, temperature=0
    )
    assert isinstance(completion.choices[0].message.parsed, Person)
    response = client.responses.parse(model=MODEL, input=PERSON, text_format=Person, temperature=0)
    assert isinstance(response.output_parsed, Person)


@feature
def embeddings():
    answer = client.embeddings.create(model=embedding_model(), input=["a fox", "a cat"])
    assert len(answer.data) == 2
    assert len(answer.data[0].embedding) == len(answer.data[1].embedding) > 0


@feature
def batch():
    body = {"model": MODEL, "messages": [user(HELLO)], "max_tokens": 8}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    file = io.BytesIO(json.dumps(line).encode() + b"\n")
    made = client.files.create(file=("lines.jsonl", file), purpose="batch")
    ran = client.batches.create(
        input_file_id=made.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    deadline = time.monotonic() + 100
    while ran.status not in ("completed", "failed", "expired", "cancelled"):
        assert time.monotonic() < deadline, ran
        time.sleep(0.5)
        ran = client.batches.retrieve(ran.id)
    assert ran.status == "completed", ran
    (answered,) = client.files.content(ran.output_file_id).text.splitlines()
    assert json.loads(answered)["response"]["body"]["choices"][0]["message"]["content"]


@feature
def errors():
    for wrong, expected in (
        ({"model": "gpt-9"}, openai.NotFoundError),
        ({"temperature": 9}, openai.BadRequestError),
    ):
        try:
            client.chat.completions.create(**{"model": MODEL, "messages": [user(HELLO)]} | wrong)
        except expected as error:
            assert error.param == next(iter(wrong)), error
        else:
            raise AssertionError(f"{wrong} was taken")
    try:
        client.with_options(api_key="sk-wrong").models.list()
    except openai.AuthenticationError:
        return
    raise AssertionError("a wrong key was taken")


run("openai")
