"""Jina's own package, which has one address for all of its calls, and Haystack's for Jina."""

from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.embedders.jina import JinaDocumentEmbedder, JinaTextEmbedder
from haystack_integrations.components.rankers.jina import JinaRanker
from jina_cli import api
from report import KEY, URL, embedding_model, feature, run

api.API_BASE = URL
QUERY = "What is the capital of Peru?"
TEXTS = ["Rome is in Italy.", "The capital of Peru is Lima."]
KNOWN = {"api_key": Secret.from_token(KEY), "model": embedding_model()}


@feature
def embeddings():
    found = api.embed(TEXTS, api_key=KEY, model=embedding_model())
    assert [one["index"] for one in found] == [0, 1]
    at = f"{URL}/v1/embeddings"
    query = JinaTextEmbedder(**KNOWN, base_url=at, task="retrieval.query").run(QUERY)
    documents = [Document(content=text) for text in TEXTS]
    told = JinaDocumentEmbedder(**KNOWN, base_url=at, progress_bar=False).run(documents)
    vectors = [document.embedding for document in told["documents"]]
    assert {len(one) for one in vectors} == {len(query["embedding"])}
    assert max(abs(a - b) for a, b in zip(vectors[0], found[0]["embedding"], strict=True)) < 1e-4


@feature
def rerank():
    found = api.rerank(QUERY, TEXTS, api_key=KEY, model=embedding_model(), top_n=1)
    assert [one["index"] for one in found] == [1]
    ranker = JinaRanker(**KNOWN, base_url=f"{URL}/v1/rerank")
    best = ranker.run(query=QUERY, documents=[Document(content=text) for text in TEXTS])
    assert best["documents"][0].content == TEXTS[1]


@feature
def errors():
    try:
        api.rerank(QUERY, TEXTS, api_key="jina_wrong", model=embedding_model())
    except Exception as error:
        assert "401" in str(error), error
    else:
        raise AssertionError("a wrong key was taken")


run("jina-cli", "jina-haystack")
