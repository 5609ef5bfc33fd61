"""``POST /v1/embeddings``, ``POST /v1/rerank`` and ``POST /v1/score``."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engine.errors import InvalidRequest
from engine.pooling import PoolingModel, cosine
from gateway import context
from gateway.admission.admitted import Admitted
from gateway.admission.pooled import PooledRequest
from gateway.errors import InvalidRequestError, UnsupportedParameter
from gateway.generation import pooled
from gateway.prompts.pooled import Input, of_embeddings, of_pairs
from gateway.routes.answers import note_admission
from gateway.routes.http import while_connected
from gateway.schemas.embeddings import (
    DocumentText,
    EmbeddingAnswer,
    EmbeddingObject,
    EmbeddingRequest,
    PoolingUsage,
    RerankAnswer,
    RerankRequest,
    RerankResult,
    ScoreAnswer,
    ScoreObject,
    ScoreRequest,
)
from gateway.services import Services

Results = list[bytes]
_PROMPTS = {"retrieval.query": "query", "retrieval.passage": "document"}
"""The model's prompts, by Jina's names for tasks."""


async def embed(services: Services, request: Request, body: EmbeddingRequest) -> Response:
    if body.late_chunking:
        raise UnsupportedParameter(
            "Each text has a vector of its own; leave it out.", param="late_chunking"
        )

    def inputs(pooling: PoolingModel) -> Sequence[Input]:
        if pooling.task != "embed":
            raise InvalidRequestError(
                "The model is a cross-encoder: it serves /v1/rerank and /v1/score.", param="model"
            )
        try:
            pooling.check_dimensions(body.dimensions)
        except InvalidRequest as exc:
            raise InvalidRequestError(str(exc), param="dimensions") from None
        prompt = pooling.prompts.get(_PROMPTS.get(body.task or "", ""), pooling.default_prompt)
        return of_embeddings(body.input, prompt)

    def ignored(pooling: PoolingModel) -> list[str]:
        has_effect = _PROMPTS.get(body.task or "") in pooling.prompts
        return [] if body.task is None or has_effect else ["task"]

    def answer(pooling: PoolingModel, admitted: Admitted, results: Results) -> EmbeddingAnswer:
        objects = []
        for index, result in enumerate(results):
            vector = pooling.vector(result, body.dimensions)
            if body.encoding_format == "base64":
                found: str | list[float] = b64encode(vector.tobytes()).decode()
            else:
                found = vector.tolist()
            objects.append(EmbeddingObject(index=index, embedding=found))
        return EmbeddingAnswer(data=objects, model=admitted.model, usage=_usage(admitted))

    return await _answer(services, request, body, inputs, answer, ignored)


async def rerank(services: Services, request: Request, body: RerankRequest) -> Response:
    if body.top_n is not None and body.top_n < 1:
        raise InvalidRequestError(f"Must be at least 1, is {body.top_n}.", param="top_n")
    limit = body.max_tokens_per_doc
    if limit is not None and limit < 1:
        raise InvalidRequestError(f"Must be at least 1, is {limit}.", param="max_tokens_per_doc")
    if not body.documents:
        raise InvalidRequestError("Must not be empty.", param="documents")
    documents = [one if isinstance(one, str) else one.text for one in body.documents]

    def inputs(pooling: PoolingModel) -> Sequence[Input]:
        others = [Input(text, f"documents[{i}]", limit) for i, text in enumerate(documents)]
        return of_pairs([Input(body.query, "query")], others, pooling)

    def answer(pooling: PoolingModel, admitted: Admitted, results: Results) -> RerankAnswer:
        scores = _scores(pooling, results, num_others=len(documents))
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
        shown = [
            DocumentText(text=text) if body.return_documents else msgspec.UNSET
            for text in documents
        ]
        return RerankAnswer(
            id=f"rerank-{admitted.id.hex}",
            model=admitted.model,
            results=[
                RerankResult(index=i, relevance_score=scores[i], document=shown[i]) for i in order
            ],
            usage=_usage(admitted),
        )

    def ignored(pooling: PoolingModel) -> list[str]:
        return [] if body.priority is None else ["priority"]

    return await _answer(services, request, body, inputs, answer, ignored)


async def score(services: Services, request: Request, body: ScoreRequest) -> Response:
    ones = [body.text_1] if isinstance(body.text_1, str) else body.text_1
    others = [body.text_2] if isinstance(body.text_2, str) else body.text_2
    if not others:
        raise InvalidRequestError("Must not be empty.", param="text_2")
    if len(ones) not in (1, len(others)):
        raise InvalidRequestError(
            f"Must be one text, or as many as text_2 has ({len(others)}), is {len(ones)}.",
            param="text_1",
        )

    def inputs(pooling: PoolingModel) -> Sequence[Input]:
        return of_pairs(
            [Input(text, f"text_1[{i}]") for i, text in enumerate(ones)],
            [Input(text, f"text_2[{i}]") for i, text in enumerate(others)],
            pooling,
        )

    def answer(pooling: PoolingModel, admitted: Admitted, results: Results) -> ScoreAnswer:
        scores = _scores(pooling, results, num_others=len(others))
        return ScoreAnswer(
            id=f"score-{admitted.id.hex}",
            created=int(time.time()),
            model=admitted.model,
            data=[ScoreObject(index=i, score=value) for i, value in enumerate(scores)],
            usage=_usage(admitted),
        )

    return await _answer(services, request, body, inputs, answer)


async def _answer(
    services: Services,
    request: Request,
    body: EmbeddingRequest | RerankRequest | ScoreRequest,
    inputs: Callable[[PoolingModel], Sequence[Input]],
    answer: Callable[[PoolingModel, Admitted, Results], msgspec.Struct],
    ignored: Callable[[PoolingModel], Sequence[str]] = lambda pooling: (),
) -> Response:
    """Compute what ``inputs`` says, and turn the results into the body by ``answer``."""
    known, principal = context.of(request.scope), context.principal_of(request.scope)
    asked = PooledRequest(
        id=known.request_id,
        principal=principal,
        model=body.model,
        inputs=inputs,
        user=body.user,
        ignored=ignored,
    )
    admitted = await while_connected(request, services.admission.admit_pooled(asked))
    note_admission(known, admitted)
    generation = pooled.begin(services.generations, admitted)
    try:
        results = await while_connected(request, generation.results())
    finally:
        generation.close()
    pooling = admitted.base.pooling
    assert pooling is not None

    def encode() -> bytes:
        return msgspec.json.encode(answer(pooling, admitted, results))

    size = sum(map(len, results))
    threads = services.admission.prompt_threads
    encoded = await threads.run(encode, tenant=principal.tenant.id, size=size)
    return Response(encoded, media_type="application/json")


def _scores(pooling: PoolingModel, results: Results, *, num_others: int) -> list[float]:
    """What ``of_pairs`` asked for, as scores."""
    if pooling.task == "score":
        return [float(pooling.vector(result)[0]) for result in results]
    vectors = [pooling.vector(result) for result in results]
    ones, others = vectors[:-num_others], vectors[-num_others:]
    return [cosine(ones[i if len(ones) > 1 else 0], other) for i, other in enumerate(others)]


def _usage(admitted: Admitted) -> PoolingUsage:
    num_tokens = admitted.num_prompt_tokens
    return PoolingUsage(prompt_tokens=num_tokens, total_tokens=num_tokens)
