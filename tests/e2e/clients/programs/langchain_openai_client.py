"""LangChain over ``langchain-openai``: Chat Completions, and Responses for the tools."""

import openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel
from report import HELLO, KEY, MODEL, PERSON, RESULT, URL, WEATHER, embedding_model, feature, run

AT = {"base_url": f"{URL}/v1", "api_key": KEY, "max_retries": 0}
model = ChatOpenAI(model=MODEL, temperature=0, **AT)


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
    assert "".join(chunk.content for chunk in model.stream(HELLO))


@feature
def tools():
    for one in (model, ChatOpenAI(model=MODEL, temperature=0, use_responses_api=True, **AT)):
        bound = one.bind_tools([get_weather])
        messages = [HumanMessage(WEATHER)]
        asked = bound.invoke(messages)
        (call,) = asked.tool_calls
        assert call["args"] == {"city": "Oslo"}, call
        messages += [asked, ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])]
        assert bound.invoke(messages).text


@feature
def structured():
    for method in ("json_schema", "function_calling"):
        found = model.with_structured_output(Person, method=method).invoke(PERSON)
        assert isinstance(found, Person), (method, found)


@feature
def embeddings():
    embedder = OpenAIEmbeddings(model=embedding_model(), check_embedding_ctx_length=False, **AT)
    assert len(embedder.embed_documents(["a fox", "a cat"])) == 2


@feature
def errors():
    try:
        ChatOpenAI(model="gpt-9", **AT).invoke(HELLO)
    except openai.NotFoundError:
        return
    raise AssertionError("an unknown model was taken")


run("langchain-openai", "langchain-core")
