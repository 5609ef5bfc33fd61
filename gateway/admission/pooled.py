"""What is asked for where a model makes vectors or scores, and which models do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

import msgspec

from engine.pooling import PoolingModel
from gateway.admission.model import Model
from gateway.errors import InvalidRequestError
from gateway.prompts.pooled import Input
from tenants.types import Principal


class PooledRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for vectors or scores, whichever API it came by."""

    id: UUID
    principal: Principal
    model: str
    inputs: Callable[[PoolingModel], Sequence[Input]]
    """What is to be computed by a model of this kind. Raises ``InvalidRequestError`` if it cannot
    do what is asked."""
    user: str | None = None
    ignored: Callable[[PoolingModel], Sequence[str]] = lambda pooling: ()
    """The fields of the client's request that change nothing where a model of this kind serves."""


def pooling_of(model: Model) -> PoolingModel:
    """Raises ``InvalidRequestError`` for a model that generates text."""
    if model.pooling is None:
        raise InvalidRequestError(
            f"The model {model.name!r} generates text: it makes neither embeddings nor scores.",
            param="model",
        )
    return model.pooling


def check_generates(model: Model) -> None:
    """Raises ``InvalidRequestError`` for a model that generates no text."""
    if model.pooling is not None:
        paths = "/v1/rerank and /v1/score"
        if model.pooling.task == "embed":
            paths = f"/v1/embeddings, {paths}"
        raise InvalidRequestError(
            f"The model {model.name!r} generates no text: it serves {paths}.", param="model"
        )
