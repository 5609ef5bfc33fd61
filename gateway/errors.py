"""All errors of the gateway, and the one table that turns any failure into an answer.

SetupError                     a command cannot do its work: one line for the operator
├── ConfigError                a wrong setting, named by its path
├── SecretsError               the secrets file is missing, unreadable or too open
├── AddressInUse               the port is taken
└── ClientError                the server that a command talks to cannot be used

ApiError                           a request failed: what the client gets
├── ClientMistake             4xx, 501  base of what the client can mend
│   ├── InvalidRequestError        400  the request is wrong; ``param`` names the field
│   │   ├── UnsupportedParameter   400  a known field this server cannot act on
│   │   └── ContextLengthExceeded  400  prompt and answer do not fit the model
│   ├── InvalidApiKey              401  no key, or one that is not valid
│   ├── PermissionDenied           403  a valid key without the needed scope, or a foreign Origin
│   ├── NotFound                   404  no such route
│   │   ├── ModelNotFound          404  no such model
│   │   ├── ConversationNotFound   404  no such conversation, or another tenant's
│   │   ├── StreamNotFound         404  no such resumable stream, or another tenant's
│   │   └── ResponseNotFound       404  no such response, or another tenant's
│   ├── MethodNotAllowed           405  the route exists, the method does not
│   ├── RequestTimeout             408  the client was too slow to send its request
│   ├── Conflict                   409  it exists already
│   │   └── IdempotencyKeyReused   409  the key came with another body before
│   ├── Gone                       410  it was there and is not kept any more
│   ├── PayloadTooLarge            413  above a size limit
│   ├── UnsupportedMediaType       415  the body is not JSON
│   ├── FailedDependency           424  a server that the request names failed
│   ├── HeadersTooLarge            431  above the limits on headers
│   └── UnsupportedCoding          501  a Transfer-Encoding that is not decoded here
├── RateLimited                    429  above a limit of this client
│   ├── InsufficientQuota          429  the month's budget is used up: trying again is in vain
│   └── RequestTooLarge            429  this request alone is above the limit of a minute
├── InternalError                  500  our fault
│   └── GenerationFailed           500  the engine could not finish this request
└── Unavailable                    503  try again later
    ├── Overloaded                 503  too many requests wait already
    ├── EngineUnavailable          503  the engine is starting, restarting or gone
    ├── AdapterUnavailable         503  the files of an adapter are gone, or not what was loaded
    ├── StoreUnavailable           503  keys or limits cannot be checked at the moment
    ├── FormatsUnavailable         503  no grammar can be compiled at the moment
    └── Draining                   503  the server is shutting down

Each class carries the whole answer: HTTP status, OpenAI's type and code, the WebSocket close code
where the connection itself must end, and whether trying again may help.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from typing import ClassVar

import msgspec
from starlette.exceptions import HTTPException

from engine.errors import AdapterLoadError, EngineDead, InvalidRequest, QueueFull
from gateway import rate_limits
from gateway.logs import LogThrottle
from gateway.schemas.common import ErrorBody, ErrorObject
from grammar.errors import CompilerUnavailable, CompileTimeout, GrammarError, InvalidGrammar
from tenants import keys
from tenants.errors import (
    AuthenticationFailed,
    InvalidValue,
    NotAllowed,
    ObjectExists,
    ObjectNotFound,
    QuotaExceeded,
)
from tenants.errors import StoreUnavailable as TenantStoreUnavailable

logger = logging.getLogger(__name__)

_seldom = LogThrottle(burst=20, per_s=0.5)
"""For errors with a traceback, which each request may meet."""

MAX_QUOTED = 64
"""Characters of an id that an error message shows."""
MAX_MESSAGE, MAX_PARAM = 2048, 256
"""Characters of what an error says, and of the field that it names: both may quote a client."""


_INDEX = re.compile(r"\[.*?\]")


class SetupError(Exception):
    """A command cannot do its work; the message is one line that names the cause and the mend."""


class ConfigError(SetupError):
    """A wrong setting."""


class SecretsError(SetupError):
    """The secrets file is missing, unreadable or open to others."""


class AddressInUse(SetupError):
    """The address to listen on is taken or not ours."""


class ClientError(SetupError):
    """The server that a command talks to cannot be used."""


def quoted(text: str) -> str:
    """A client's text shortened for an error message: an id can be of any length."""
    return repr(text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…")


class ApiError(Exception):
    """A request failed. ``message`` is written for the client: no secrets, no internals.

    A subclass states what differs from its base: ``status`` (HTTP), ``type`` and ``code``
    (OpenAI's), ``close_code`` (of a WebSocket that ends with the error), and ``retryable``.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str | None] = None
    close_code: ClassVar[int] = 1011
    retryable: ClassVar[bool] = False

    def __init_subclass__(
        cls,
        *,
        status: int | None = None,
        type: str | None = None,
        code: str | None = None,
        close_code: int | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init_subclass__()
        stated = {
            "status": status,
            "type": type,
            "default_code": code,
            "close_code": close_code,
            "retryable": retryable,
        }
        for name, value in stated.items():
            if value is not None:
                setattr(cls, name, value)

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        headers: dict[str, str] | None = None,
        is_renamed: bool = False,
    ) -> None:
        """``is_renamed``: ``param`` is what the client calls the field, whichever API it uses."""
        message = message[:MAX_MESSAGE]
        super().__init__(message)
        self.message = message
        self.param = None if param is None else param[:MAX_PARAM]
        self.code = code or self.default_code
        self.retry_after_s = retry_after_s
        self.extra_headers = headers or {}
        self.is_renamed = is_renamed

    def object(self) -> ErrorObject:
        """The error object that the client gets. SDKs show people only the message, so it names the
        field, too."""
        message, param = self.message, self.param
        if param is not None and not _is_named(param, message):
            message = f"{param}: {message}"[:MAX_MESSAGE]
        return ErrorObject(message=message, type=self.type, param=param, code=self.code)

    def body(self) -> bytes:
        return msgspec.json.encode(ErrorBody(self.object()))

    def limit_headers(self) -> dict[str, str]:
        """Headers that say when to try again and what is left of the limits; WebSockets send them
        in the event."""
        headers = dict(self.extra_headers)
        if self.retry_after_s is not None:
            headers["retry-after"] = str(math.ceil(self.retry_after_s))
        return headers

    def headers(self, *, began: bool = False) -> dict[str, str]:
        """began: tokens were generated already, so a silent retry would be billed twice."""
        headers = {"content-type": "application/json", **self.limit_headers()}
        if (self.status >= 500 or self.status == 429) and (began or not self.retryable):
            headers["x-should-retry"] = "false"
        return headers


def _is_named(param: str, message: str) -> bool:
    """Whether ``message`` mentions the last name of the path ``param``."""
    name = _INDEX.sub("", param).rpartition(".")[2]
    start = message.find(name) if name else -1
    while start >= 0:
        end = start + len(name)
        if not (_is_of_word(message[start - 1 : start]) or _is_of_word(message[end : end + 1])):
            return True
        start = message.find(name, start + 1)
    return False


def _is_of_word(character: str) -> bool:
    return character.isalnum() or character == "_"


class ClientMistake(ApiError, type="invalid_request_error", close_code=1008):
    """Base of the errors that the client can mend (4xx, 501), except for rate limits."""


class InvalidRequestError(ClientMistake, status=400, code="invalid_request"):
    """The request is wrong; ``param`` names the field."""


class UnsupportedParameter(InvalidRequestError, code="unsupported_parameter"):
    """A known field this server cannot act on."""


class ContextLengthExceeded(InvalidRequestError, code="context_length_exceeded"):
    """Prompt and answer do not fit the model."""


class InvalidApiKey(ClientMistake, status=401, code="invalid_api_key", close_code=4401):
    """No key, or one that is not valid."""

    def headers(self, *, began: bool = False) -> dict[str, str]:
        return {**super().headers(began=began), "www-authenticate": "Bearer"}


class PermissionDenied(ClientMistake, status=403, code="permission_denied", close_code=4403):
    """A valid key without the needed scope, or a foreign Origin."""


class NotFound(ClientMistake, status=404, code="not_found"):
    """No such route."""


class ModelNotFound(NotFound, code="model_not_found"):
    """No such model."""


class StreamNotFound(NotFound, code="stream_not_found"):
    """No such resumable stream, or another tenant's."""


class ResponseNotFound(NotFound, type="not_found", code="response_not_found"):
    """No such response, or another tenant's."""


class ConversationNotFound(NotFound, type="not_found", code="conversation_not_found"):
    """No such conversation, or another tenant's."""


class FailedDependency(ClientMistake, status=424, code="mcp_server_failed"):
    """A server that the request names did not do what it should."""


class MethodNotAllowed(ClientMistake, status=405, code="method_not_allowed"):
    """The route exists, the method does not."""


class RequestTimeout(ClientMistake, status=408, code="request_timeout", retryable=True):
    """The client was too slow to send its request."""


class Conflict(ClientMistake, status=409, code="already_exists"):
    """It exists already."""

    def headers(self, *, began: bool = False) -> dict[str, str]:
        # OpenAI's clients treat every 409 as a lock that will soon be free.
        return {**super().headers(began=began), "x-should-retry": "false"}


class IdempotencyKeyReused(Conflict, code="idempotency_key_reused"):
    """The key came with another body before."""


class Gone(ClientMistake, status=410, code="gone"):
    """It was there and is not kept any more."""


class PayloadTooLarge(ClientMistake, status=413, code="request_too_large", close_code=1009):
    """Above a size limit."""


class UnsupportedMediaType(
    ClientMistake, status=415, code="unsupported_media_type", close_code=1003
):
    """The body is not JSON."""


class RateLimited(
    ApiError,
    status=429,
    type="rate_limit_error",
    code="rate_limit_exceeded",
    close_code=1008,
    retryable=True,
):
    """Above a limit of this client."""


class InsufficientQuota(
    RateLimited, type="insufficient_quota", code="insufficient_quota", retryable=False
):
    """The month's budget is used up."""


class RequestTooLarge(RateLimited, retryable=False):
    """This request alone is above the limit of a minute."""


class UnsupportedCoding(ClientMistake, status=501, code="unsupported_transfer_encoding"):
    """A Transfer-Encoding that this server does not decode."""


class HeadersTooLarge(ClientMistake, status=431, code="headers_too_large"):
    """The request line and the headers exceed their limits."""


class InternalError(ApiError, code="internal_error"):
    """Our fault; the log has the rest under the request's id."""


class GenerationFailed(InternalError, code="generation_failed"):
    """The engine could not finish this request."""


class Unavailable(
    ApiError, status=503, code="service_unavailable", close_code=1013, retryable=True
):
    """Try again later."""


class Overloaded(Unavailable, code="overloaded"):
    """Too many requests wait already."""


class EngineUnavailable(Unavailable, code="engine_unavailable"):
    """The engine is starting, restarting or gone."""


class AdapterUnavailable(Unavailable, code="adapter_unavailable"):
    """The files of an adapter are gone, or not what was loaded."""


class StoreUnavailable(Unavailable, code="store_unavailable"):
    """Keys or limits cannot be checked at the moment."""


class FormatsUnavailable(Unavailable, code="formats_unavailable"):
    """No grammar can be compiled at the moment."""


class Draining(Unavailable, code="shutting_down", close_code=1012):
    """The server is shutting down."""


def _from_http(exc: HTTPException) -> ApiError:
    return (NotFound if exc.status_code == 404 else InvalidRequestError)(exc.detail)


def _from_grammar(exc: GrammarError) -> ApiError:
    return InvalidRequestError(f"The output format cannot be used: {exc}", param="response_format")


def _from_compiler(exc: CompilerUnavailable) -> ApiError:
    if _seldom.admit(CompilerUnavailable.__qualname__) is not None:
        logger.error("%s", exc)
    return FormatsUnavailable(
        "Formats cannot be enforced at the moment; the server's log says why.",
        retry_after_s=10,
    )


def _from_quota(exc: QuotaExceeded) -> ApiError:
    headers = rate_limits.headers(exc.answer)
    if exc.is_budget:
        return InsufficientQuota(str(exc), headers=headers)
    if exc.is_too_large:
        return RequestTooLarge(f"{exc} This request alone is above it.", headers=headers)
    wait_us = 1_000_000 if exc.retry_after_us is None else exc.retry_after_us
    headers["retry-after-ms"] = str(math.ceil(wait_us / 1000))
    return RateLimited(str(exc), retry_after_s=wait_us / 1e6, headers=headers)


# First match wins: a subclass stands above its base.
_TRANSLATIONS: tuple[tuple[type[Exception], Callable[..., ApiError]], ...] = (
    (InvalidRequest, lambda exc: InvalidRequestError(str(exc))),
    (
        QueueFull,
        lambda exc: Overloaded("Too many requests are waiting; try again.", retry_after_s=1),
    ),
    (
        EngineDead,
        lambda exc: EngineUnavailable(
            "The engine is not available; it is being started. /readyz is 200 when it serves.",
            retry_after_s=2,
        ),
    ),
    (
        AuthenticationFailed,
        lambda exc: InvalidApiKey(
            "Incorrect API key provided: it is unknown or not valid. A whole key begins with "
            f"{keys.PREFIX}- and has {keys.KEY_LENGTH} characters."
        ),
    ),
    (
        TenantStoreUnavailable,
        lambda exc: StoreUnavailable(
            "Keys and limits cannot be checked at the moment.", retry_after_s=2
        ),
    ),
    (NotAllowed, lambda exc: PermissionDenied(str(exc), param=exc.field)),
    (InvalidValue, lambda exc: InvalidRequestError(str(exc), param=exc.field)),
    (ObjectNotFound, lambda exc: NotFound(str(exc))),
    (ObjectExists, lambda exc: Conflict(str(exc))),
    (
        AdapterLoadError,
        lambda exc: InvalidRequestError(
            " ".join(str(exc).split()), param="path", code="invalid_adapter"
        ),
    ),
    (QuotaExceeded, _from_quota),
    (CompilerUnavailable, _from_compiler),
    (InvalidGrammar, _from_grammar),
    (
        CompileTimeout,
        lambda exc: InvalidRequestError(
            "The output format is too costly to compile.", param="response_format"
        ),
    ),
    (GrammarError, _from_grammar),
    (HTTPException, _from_http),
)


def foreseen(exc: BaseException) -> ApiError | None:
    """What the client gets for ``exc``; None if nobody expected it."""
    if isinstance(exc, ApiError):
        return exc
    return next(
        (translate(exc) for kind, translate in _TRANSLATIONS if isinstance(exc, kind)), None
    )


def to_api_error(exc: BaseException) -> ApiError:
    """What the client gets for ``exc``; anything not foreseen is our fault, and logged, if it
    does not come too often."""
    if (error := foreseen(exc)) is not None:
        return error
    num_left_out = _seldom.admit(type(exc).__qualname__)
    if num_left_out is not None:
        others = f", and {num_left_out} more of this type" if num_left_out else ""
        logger.error("unexpected error%s", others, exc_info=exc)
    return InternalError("The server failed to handle the request.")
