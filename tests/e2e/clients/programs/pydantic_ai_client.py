"""Pydantic AI, over Chat Completions, Responses and Messages."""

from pydantic import BaseModel
from pydantic_ai import Agent, ModelHTTPError, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from report import HELLO, KEY, MODEL, PERSON, RESULT, URL, WEATHER, feature, run

OPENAI = OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY)


def models(name=MODEL):
    return (
        OpenAIChatModel(name, provider=OPENAI),
        OpenAIResponsesModel(name, provider=OPENAI),
        AnthropicModel(name, provider=AnthropicProvider(base_url=URL, api_key=KEY)),
    )


SETTINGS = {"temperature": 0.0, "max_tokens": 200}


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@feature
async def chat():
    for model in models():
        result = await Agent(model, model_settings=SETTINGS).run(HELLO)
        assert result.output, model


@feature
async def stream():
    for model in models():
        async with Agent(model, model_settings=SETTINGS).run_stream(HELLO) as result:
            assert "".join([piece async for piece in result.stream_text(delta=True)]), model


@feature
async def tools():
    for model in models():
        called = []
        agent = Agent(model, model_settings=SETTINGS)

        @agent.tool_plain
        def get_weather(city: str) -> str:
            """The weather in a city."""
            called.append(city)  # noqa: B023
            return RESULT

        result = await agent.run(WEATHER)
        assert called == ["Oslo"], (model, called)
        assert result.output


@feature
async def structured():
    for model in models()[:2]:
        for wanted in (Person, NativeOutput(Person)):
            agent = Agent(model, output_type=wanted, model_settings=SETTINGS)
            assert isinstance((await agent.run(PERSON)).output, Person)


@feature
async def errors():
    for model in models("gpt-9"):
        try:
            await Agent(model).run(HELLO)
        except ModelHTTPError as error:
            assert error.status_code == 404
        else:
            raise AssertionError("an unknown model was taken")


run("pydantic-ai-slim")
