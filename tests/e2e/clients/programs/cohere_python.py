"""The ``cohere`` package: reranking, by both of its clients."""

import cohere
from report import KEY, URL, embedding_model, feature, run

QUERY = "What is the capital of Peru?"
DOCUMENTS = ["Rome is in Italy.", "The capital of Peru is Lima.", "Cats sleep a lot."]
clients = [kind(api_key=KEY, base_url=URL) for kind in (cohere.ClientV2, cohere.Client)]


@feature
def rerank():
    for client in clients:
        asked = {"model": embedding_model(), "query": QUERY, "documents": DOCUMENTS}
        results = client.rerank(top_n=2, **asked).results
        assert [results[0].index, len(results)] == [1, 2]
        assert results[0].relevance_score > results[1].relevance_score
    more = {"max_tokens_per_doc": 100, "priority": 1}
    assert clients[0].rerank(**asked, **more).results[0].index == 1
    shown = clients[1].rerank(return_documents=True, **asked).results[0]
    assert shown.document.text == DOCUMENTS[1]


@feature
def errors():
    for client in clients:
        asked = {"query": QUERY, "documents": DOCUMENTS}
        try:
            client.rerank(model="none", **asked)
        except cohere.NotFoundError as error:
            assert error.body["error"]["param"] == "model", error.body
        else:
            raise AssertionError("an unknown model was taken")
        try:
            client.rerank(model=embedding_model(), query=QUERY, documents=[])
        except cohere.BadRequestError as error:
            assert error.body["error"]["param"] == "documents", error.body
        else:
            raise AssertionError("no documents were taken")


run("cohere")
