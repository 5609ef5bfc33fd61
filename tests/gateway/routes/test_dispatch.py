"""Paths where nothing is, or nothing for the method. What they answer is in
``tests/gateway/recorded_errors.json``."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import anthropic
import openai
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


@pytest.mark.parametrize(("client", "before"), [(openai, "/v1"), (anthropic, "")])
def test_whatever_their_packages_ask_for_is_here_or_named(client: ModuleType, before: str) -> None:
    """By the first part of each path: an API is here, or said not to be."""
    assert client.__file__ is not None
    sources = Path(client.__file__).parent.glob("resources/**/*.py")
    paths = {path for file in sources for path in re.findall(r'"(/[a-z0-9_/]+)', file.read_text())}
    asked = {"/".join(f"{before}{path}".split("/")[:3]) for path in paths}
    assert {"/v1/models", "/v1/files"} <= asked
    here = {"/".join(one.path.split("/")[:3]) for one in OPERATIONS}
    assert not asked - here - ELSEWHERE.keys() - {"/v1/v1"}  # where a batch's lines go


@pytest.mark.asyncio
async def test_anthropics_files_are_not_openais(gateway: Gateway) -> None:
    async with anthropic.AsyncAnthropic(
        base_url=gateway.url, api_key=gateway.api_key, max_retries=0
    ) as client:
        for call in (client.beta.files.list(), client.beta.files.upload(file=b"x")):
            with pytest.raises(anthropic.NotFoundError, match="Anthropic's Files"):
                await call


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
