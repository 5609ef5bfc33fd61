"""Embeddings as in OpenAI's API, reranking as in Cohere's and Jina's, scores as in vLLM's."""

from __future__ import annotations

from typing import Literal

import msgspec

EmbeddingInput = str | list[str | int | list[int]]
"""A text, a list of texts, token ids, or a list of those."""


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/embeddings``."""

    model: str
    input: EmbeddingInput
    encoding_format: Literal["float", "base64"] | None = None
    """``float``, the default: a list of numbers; ``base64``: float32 numbers, little-endian."""
    dimensions: int | None = None
    """Numbers in a vector, for models that were trained for several sizes."""
    task: str | None = None
    """Jina's: ``retrieval.query`` or ``retrieval.passage`` puts the model's prompt for queries or
    documents before the texts, if it has one. Others change nothing."""
    late_chunking: bool | None = None
    """Jina's; true is refused."""
    user: str | None = None


class PoolingUsage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingObject(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str
    """A text with ``base64``."""


class EmbeddingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[EmbeddingObject]
    model: str
    usage: PoolingUsage


class DocumentText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    text: str


class RerankRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/rerank``."""

    model: str
    query: str
    documents: list[str | DocumentText]
    top_n: int | None = None
    """How many of the documents to return, the best ones; all by default."""
    return_documents: bool | None = None
    """Whether the results hold the documents' texts."""
    max_tokens_per_doc: int | None = None
    """Cohere's: documents are cut to so many tokens."""
    priority: int | None = None
    """Cohere's; it changes nothing."""
    user: str | None = None


class RerankResult(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    """Of the document in the request."""
    relevance_score: float
    document: DocumentText | msgspec.UnsetType = msgspec.UNSET


class RerankAnswer(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    model: str
    results: list[RerankResult]
    """The best one first."""
    usage: PoolingUsage


class ScoreRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/score``: each of ``text_2`` is compared with ``text_1``, or with the
    one at its place."""

    model: str
    text_1: str | list[str]
    text_2: str | list[str]
    user: str | None = None


class ScoreObject(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreAnswer(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[ScoreObject]
    usage: PoolingUsage
