"""Errors as HTTP answers: in OpenAI's form, or in Anthropic's for its clients."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Scope

from gateway import context
from gateway.answers.messages import error_body, error_status
from gateway.errors import ApiError

_MESSAGES = "/v1/messages"


def refusal(scope: Scope, error: ApiError, *, began: bool = False) -> Response:
    """``began``: tokens were generated already."""
    headers = error.headers(began=began)
    if not _is_anthropics(scope):
        return Response(error.body(), error.status, headers)
    known = context.of(scope)
    request_id = known.headers["request-id"] = str(known.request_id)
    return Response(error_body(error, request_id), error_status(error), headers)


def _is_anthropics(scope: Scope) -> bool:
    """Whether the client expects Anthropic's form: its SDKs send their version to every path."""
    if scope["path"].startswith(_MESSAGES):
        return True
    return any(name == b"anthropic-version" for name, _ in scope["headers"])
