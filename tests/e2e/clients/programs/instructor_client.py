"""Instructor, in its modes for tools and JSON schemas."""

import instructor
import openai
from pydantic import BaseModel
from report import KEY, MODEL, PERSON, URL, feature, run

openai_client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
ASKED = {
    "model": MODEL,
    "messages": [{"role": "user", "content": PERSON}],
    "temperature": 0,
    "max_retries": 0,
}


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@feature
def structured():
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(openai_client, mode=mode)
        found = client.chat.completions.create(response_model=Person, **ASKED)
        assert isinstance(found, Person), mode


@feature
def stream():
    client = instructor.from_openai(openai_client)
    *_, last = client.chat.completions.create_partial(response_model=Person, **ASKED)
    assert last.name
    assert last.age is not None


@feature
def errors():
    client = instructor.from_openai(openai_client)
    try:
        client.chat.completions.create(response_model=Person, **ASKED | {"model": "gpt-9"})
    except Exception as error:
        assert "404" in str(error), error
        return
    raise AssertionError("an unknown model was taken")


run("instructor")
