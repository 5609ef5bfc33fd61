"""LlamaIndex, with its provider for servers like OpenAI's, and its agents."""

import openai
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel
from report import HELLO, KEY, MODEL, PERSON, RESULT, URL, WEATHER, embedding_model, feature, run

AT = {"api_base": f"{URL}/v1", "api_key": KEY, "max_retries": 0}


def served(model=MODEL):
    return OpenAILike(
        model=model,
        is_chat_model=True,
        is_function_calling_model=True,
        should_use_structured_outputs=True,
        temperature=0,
        **AT,
    )


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@feature
def chat():
    assert served().chat([ChatMessage(HELLO)]).message.content


@feature
def stream():
    pieces = [piece.delta for piece in served().stream_chat([ChatMessage(HELLO)])]
    assert "".join(piece or "" for piece in pieces)


@feature
async def tools():
    called = []

    def get_weather(city: str) -> str:
        """The weather in a city."""
        called.append(city)
        return RESULT

    agent = FunctionAgent(tools=[get_weather], llm=served())
    answer = await agent.run(WEATHER, max_iterations=4)
    assert called == ["Oslo"], called
    assert str(answer)


@feature
def structured():
    found = served().as_structured_llm(Person).complete(PERSON).raw
    assert isinstance(found, Person), found


@feature
def embeddings():
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding

    embedder = OpenAILikeEmbedding(
        model_name=embedding_model(), api_base=f"{URL}/v1", api_key=KEY, max_retries=0
    )
    assert len(embedder.get_text_embedding_batch(["a fox", "a cat"])) == 2


@feature
def errors():
    try:
        served("gpt-9").chat([ChatMessage(HELLO)])
    except openai.NotFoundError:
        return
    raise AssertionError("an unknown model was taken")


run("llama-index-core", "llama-index-llms-openai-like")
