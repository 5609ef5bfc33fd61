"""``/auth``: people sign in on the pages, by the authorization code flow with PKCE."""

from __future__ import annotations

import hmac

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from gateway.errors import ApiError, InvalidApiKey, NotFound, PermissionDenied, to_api_error
from gateway.middleware.auth import credential_in
from gateway.oidc.sign_in import SIGN_IN_S, Attempt, SignIn
from gateway.routes.http import secret_answer
from gateway.schemas.sign_in import SignInState
from gateway.services import Services
from tenants.errors import TenantsError

PAGES = ("/", "/admin/")
ATTEMPT = "sluice-sign-in"
"""The cookie of a sign-in that has been begun."""


async def begin(services: Services, request: Request) -> Response:
    """To the provider, and then back to the page that was given."""
    sign_in = _sign_in(services)
    page = request.query_params.get("page", "/")
    attempt = Attempt.begin(page if page in PAGES else "/")
    url = await sign_in.provider.authorization_url(
        state=attempt.state, nonce=attempt.nonce, challenge=attempt.challenge
    )
    response = _redirect(url)
    _set(response, sign_in, ATTEMPT, sign_in.seal(attempt), SIGN_IN_S, path="/auth/")
    return response


async def callback(services: Services, request: Request) -> Response:
    """Where the provider sends the browser. Failures are told in words: a person reads them."""
    sign_in = _sign_in(services)
    attempt = sign_in.unseal(request.cookies.get(ATTEMPT, ""), Attempt)
    try:
        session = await _finish(sign_in, request, attempt)
        assert attempt is not None
        response = _redirect(attempt.page)
        _set(response, sign_in, sign_in.cookie, session, sign_in.config.session_s)
    except (ApiError, TenantsError) as error:
        failure = to_api_error(error)
        response = PlainTextResponse(f"Signing in failed. {failure.message}", failure.status)
        response.headers["cache-control"] = "no-store"
    response.delete_cookie(ATTEMPT, path="/auth/")
    return response


async def _finish(sign_in: SignIn, request: Request, attempt: Attempt | None) -> str:
    query = request.query_params
    if attempt is None or not hmac.compare_digest(
        query.get("state", "").encode(), attempt.state.encode()
    ):
        raise InvalidApiKey("It was begun elsewhere, or too long ago; begin again.")
    if query.get("iss", sign_in.config.issuer) != sign_in.config.issuer:  # RFC 9207
        raise InvalidApiKey("The answer is another provider's.")
    if "code" not in query:
        raise PermissionDenied(f"The provider says {query.get('error', 'nothing')[:64]!r}.")
    claims = await sign_in.provider.exchange(
        query["code"], verifier=attempt.verifier, nonce=attempt.nonce
    )
    return await sign_in.start_session(claims)


async def sign_out(services: Services, request: Request) -> Response:
    sign_in = _sign_in(services)
    credential_in(request.headers, request.method, sign_in)  # Only the pages may do so.
    response = Response(status_code=204)
    response.delete_cookie(sign_in.cookie, secure=sign_in.config.is_secure, httponly=True)
    return response


async def state(services: Services, request: Request) -> Response:
    """For the pages, which cannot read the cookie."""
    sign_in = services.sign_in
    if sign_in is None or sign_in.config.client_id is None:
        return secret_answer(SignInState())
    session = sign_in.session(request.cookies.get(sign_in.cookie))
    if session is None:
        return secret_answer(SignInState(is_offered=True))
    return secret_answer(SignInState(is_offered=True, name=session.name, scopes=session.scopes))


def _sign_in(services: Services) -> SignIn:
    if services.sign_in is None or services.sign_in.config.client_id is None:
        raise NotFound("Nobody signs in here: the settings have no oidc.client_id.")
    return services.sign_in


def _redirect(url: str) -> Response:
    return RedirectResponse(url, 303, {"cache-control": "no-store"})


def _set(
    response: Response, sign_in: SignIn, name: str, value: str, for_s: float, *, path: str = "/"
) -> None:
    """Scripts cannot read it, and other sites' requests do not have it, but for links to ours."""
    response.set_cookie(
        name,
        value,
        max_age=int(for_s),
        path=path,
        secure=sign_in.config.is_secure,
        httponly=True,
        samesite="lax",
    )
