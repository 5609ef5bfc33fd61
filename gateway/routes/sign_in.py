"""``/auth``: people sign in on the pages, with a key or by the authorization code flow of OIDC."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from gateway.errors import ApiError, InvalidApiKey, NotFound, PermissionDenied, to_api_error
from gateway.middleware.auth import check_own_page
from gateway.oidc.sign_in import KEY_SESSION_S, PAGES, SIGN_IN_S, Attempt, Session
from gateway.routes.http import secret_answer
from gateway.schemas.sign_in import KeySignIn, SignInState
from gateway.services import Services
from tenants.errors import AuthenticationFailed, TenantsError

if TYPE_CHECKING:
    from gateway.oidc.provider import Provider

ATTEMPT = "sluice-sign-in"
"""The cookie of a sign-in that has been begun."""


async def begin(services: Services, request: Request) -> Response:
    """To the provider, and then back to the page that was given."""
    provider = _provider(services)
    attempt = Attempt.begin(_page(request))
    url = await provider.authorization_url(
        state=attempt.state, nonce=attempt.nonce, challenge=attempt.challenge
    )
    response = _redirect(url)
    sealed = services.authenticator.seal(attempt)
    _set(services, request, response, ATTEMPT, sealed, for_s=SIGN_IN_S, path="/auth/")
    return response


async def callback(services: Services, request: Request) -> Response:
    """Where the provider sends the browser. Failures are told in words: a person reads them."""
    sign_in = services.authenticator
    attempt = sign_in.unseal(request.cookies.get(ATTEMPT, ""), Attempt)
    try:
        claims = await _finish(services, request, attempt)
        session = await sign_in.start_session(claims)
        assert attempt is not None
        response = _redirect(attempt.page)
        for page in PAGES:
            cookie = sign_in.cookie(page, request.scope)
            _set(services, request, response, cookie, session, for_s=sign_in.config.session_s)
    except (ApiError, TenantsError) as error:
        failure = to_api_error(error)
        response = PlainTextResponse(f"Signing in failed. {failure.message}", failure.status)
        response.headers["cache-control"] = "no-store"
    response.delete_cookie(ATTEMPT, path="/auth/")
    return response


async def _finish(
    services: Services, request: Request, attempt: Attempt | None
) -> Mapping[str, Any]:
    provider, config = _provider(services), services.authenticator.config
    query = request.query_params
    if attempt is None or not hmac.compare_digest(
        query.get("state", "").encode(), attempt.state.encode()
    ):
        raise InvalidApiKey("It was begun elsewhere, or too long ago; begin again.")
    if query.get("iss", config.issuer) != config.issuer:  # RFC 9207
        raise InvalidApiKey("The answer is another provider's.")
    if "code" not in query:
        raise PermissionDenied(f"The provider says {query.get('error', 'nothing')[:64]!r}.")
    return await provider.exchange(query["code"], verifier=attempt.verifier, nonce=attempt.nonce)


async def with_key(services: Services, request: Request, body: KeySignIn) -> Response:
    """Only our pages may do so: another site's could sign its visitors in with a key of its own,
    and read what they write then."""
    sign_in = services.authenticator
    check_own_page(request.scope, sign_in)
    session = await sign_in.start_key_session(body.api_key)
    response = await _state(services, sign_in.session(session))
    cookie = sign_in.cookie(_page(request), request.scope)
    _set(services, request, response, cookie, session, for_s=KEY_SESSION_S)
    return response


async def sign_out(services: Services, request: Request) -> Response:
    """On both pages."""
    sign_in = services.authenticator
    check_own_page(request.scope, sign_in)
    response = Response(status_code=204)
    for page in PAGES:
        cookie = sign_in.cookie(page, request.scope)
        response.delete_cookie(cookie, secure=sign_in.is_secure(request.scope), httponly=True)
    return response


async def state(services: Services, request: Request) -> Response:
    """For the pages, which cannot read the cookie."""
    sign_in = services.authenticator
    session = sign_in.session(request.cookies.get(sign_in.cookie(_page(request), request.scope)))
    return await _state(services, session)


async def _state(services: Services, session: Session | None) -> Response:
    is_offered = services.authenticator.config.client_id is not None
    if session is None:
        return secret_answer(SignInState(is_offered=is_offered))
    try:
        tenant = (await services.authenticator.check(session.public_id)).tenant
    except AuthenticationFailed:  # The key was revoked, or has expired.
        return secret_answer(SignInState(is_offered=is_offered))
    may_keep = not {"chat", "responses"}.isdisjoint(session.scopes)
    state = SignInState(
        is_offered=is_offered,
        name=session.name,
        id=session.public_id,
        scopes=session.scopes,
        keeps_conversations=may_keep and services.conversations.are_kept(tenant),
    )
    return secret_answer(state)


def _page(request: Request) -> str:
    page = request.query_params.get("page", "/")
    return page if page in PAGES else "/"


def _provider(services: Services) -> Provider:
    provider = services.authenticator.provider
    if provider is None or services.authenticator.config.client_id is None:
        raise NotFound("There is no provider to sign in at: the settings have no oidc.client_id.")
    return provider


def _redirect(url: str) -> Response:
    return RedirectResponse(url, 303, {"cache-control": "no-store"})


def _set(
    services: Services,
    request: Request,
    response: Response,
    name: str,
    value: str,
    *,
    for_s: float,
    path: str = "/",
) -> None:
    """Scripts cannot read it, and other sites' requests do not have it, but for links to ours."""
    response.set_cookie(
        name,
        value,
        max_age=int(for_s),
        path=path,
        secure=services.authenticator.is_secure(request.scope),
        httponly=True,
        samesite="lax",
    )
