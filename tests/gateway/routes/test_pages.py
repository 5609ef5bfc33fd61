from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from gateway.concurrency.fair_starts import FairStarts
from gateway.config.oidc import OidcConfig
from gateway.middleware.auth import Auth, Operations
from gateway.middleware.errors import Errors
from gateway.middleware.request_id import RequestId
from gateway.oidc.sign_in import SignIn
from gateway.routes import pages
from gateway.routes.dispatch import dispatcher
from tests.memory_store.store import MemoryStore
from tests.tenants.samples import PEPPER


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    web = tmp_path / "web"
    (web / "js").mkdir(parents=True)
    (web / "admin").mkdir()
    (web / "index.html").write_text("<!doctype html><title>Sluice</title>")
    (web / "admin" / "index.html").write_text("<!doctype html><title>Administration</title>")
    (web / "js" / "main.js").write_text("export {};")
    (tmp_path / "outside.txt").write_text("secret")
    return web


@pytest.fixture
def client(folder: Path) -> Iterator[TestClient]:
    app = Starlette()
    served = Operations(pages.operations(folder))
    services: Any = None
    app.router.default = dispatcher(services, served)
    authenticator = SignIn(OidcConfig(), MemoryStore(), PEPPER)
    app.add_middleware(Auth, authenticator=authenticator, operations=served, starts=FairStarts())
    app.add_middleware(Errors)
    app.add_middleware(RequestId)
    with TestClient(app) as client:
        yield client


def test_files_are_served_under_a_strict_policy(client: TestClient) -> None:
    for path, media_type in (("/", "text/html"), ("/js/main.js", "text/javascript")):
        response = client.get(path)
        assert response.status_code == 200
        assert response.headers["content-type"].startswith(media_type)
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-cache"


def test_a_file_that_did_not_change_is_not_sent_again(client: TestClient) -> None:
    etag = client.get("/").headers["etag"]
    response = client.get("/", headers={"if-none-match": etag})
    assert response.status_code == 304
    assert "content-security-policy" in response.headers


def test_only_the_folder_and_only_reading(client: TestClient) -> None:
    for path in ("/../outside.txt", "/%2e%2e/outside.txt", "/js", "/js/", "/nothing"):
        assert client.get(path).status_code == 401, path
    assert client.post("/").status_code == 405


def test_public_paths_name_each_file(folder: Path) -> None:
    assert {one.path for one in pages.operations(folder)} == {
        "/",
        "/index.html",
        "/admin",
        "/admin/",
        "/admin/index.html",
        "/js/main.js",
    }


def test_a_page_in_a_folder(client: TestClient) -> None:
    response = client.get("/admin/")
    assert "Administration" in response.text
    assert "content-security-policy" in response.headers
    bare = client.get("/admin", headers={"host": "evil.example"}, follow_redirects=False)
    assert (bare.status_code, bare.headers["location"]) == (308, "/admin/")


def test_without_a_folder_nothing_is_public(tmp_path: Path) -> None:
    assert pages.operations(tmp_path / "none") == []
