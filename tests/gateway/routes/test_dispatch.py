"""Paths where nothing is, or nothing for the method. What they answer is in
``tests/gateway/recorded_errors.json``."""

from __future__ import annotations

import pytest
from websockets.exceptions import InvalidStatus

from gateway.middleware.auth import Operations
from gateway.routes.dispatch import ELSEWHERE
from gateway.routes.table import OPERATIONS
from tests.gateway.serving import Gateway
from tests.gateway.ws_client import connected


def test_what_is_elsewhere_is_not_here() -> None:
    """Who adds a route removes the sentence that it is not there."""
    for beginning in ELSEWHERE:
        below = f"{beginning}/"
        assert not [one.path for one in OPERATIONS if f"{one.path}/".startswith(below)], beginning


def test_a_fixed_path_comes_before_one_with_parameters() -> None:
    operations = Operations(OPERATIONS)
    for path in ("/v1/responses/input_tokens", "/v1/responses/compact"):
        found, parameters = operations.find("POST", path)
        assert found is not None
        assert (found.path, parameters) == (path, {})
    found, parameters = operations.find("GET", "/v1/models/a/b")
    assert found is not None
    assert (found.path, parameters) == ("/v1/models/{model:path}", {"model": "a/b"})
    assert operations.find("GET", "/v1/responses/a/b") == (None, {})


def test_no_two_operations_have_the_same_method_and_path() -> None:
    assert len({(one.method, one.path) for one in OPERATIONS}) == len(OPERATIONS)


@pytest.mark.asyncio
async def test_a_socket_where_there_is_none_is_refused_before_the_upgrade(gateway: Gateway) -> None:
    headers = {"Authorization": f"Bearer {gateway.api_key}"}
    with pytest.raises(InvalidStatus) as caught:
        async with connected(gateway, path="/v1/nothing", additional_headers=headers):
            pass
    assert caught.value.response.status_code == 404
