"""What of uvicorn and websockets is overridden or used, though neither promises to keep it.

A release that changes one of these fails here, by name. ``pyproject.toml`` has the range of
releases that pass.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import TypeGuard

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.protocol import Protocol
from websockets.server import ServerProtocol

from gateway.processes.server import Server
from gateway.transport import protocol
from gateway.transport.protocol import BoundedHttpProtocol
from gateway.transport.websocket import BoundedWebSocketProtocol

OVERRIDDEN: dict[type, dict[str, list[str]]] = {
    BoundedHttpProtocol: {
        "connection_made": ["transport"],
        "connection_lost": ["exc"],
        "data_received": ["data"],
        "handle_websocket_upgrade": [],
        "on_body": ["body"],
        "on_message_begin": [],
        "on_url": ["url"],
        "on_header": ["name", "value"],
        "on_headers_complete": [],
        "on_message_complete": [],
        "on_response_complete": [],
        "_start_asgi_task": ["cycle", "app"],
        "_should_upgrade": [],
        "send_400_response": ["msg"],
        "shutdown": [],
        "pause_writing": [],
        "resume_writing": [],
        "timeout_keep_alive_handler": [],
    },
    BoundedWebSocketProtocol: {
        "connection_made": ["transport"],
        "connection_lost": ["exc"],
        "data_received": ["data"],
        "receive": [],
        "send": ["message"],
        "shutdown": [],
        "handle_connect": ["event"],
        "run_asgi": [],
        "handle_cont": ["event"],
        "send_receive_event_to_app": [],
        "handle_parser_exception": [],
        "pause_writing": [],
        "resume_writing": [],
    },
    protocol._PacedFlow: {"__init__": ["transport"], "resume_reading": []},
    Server: {"__init__": ["config"], "shutdown": ["sockets"], "capture_signals": []},
}
"""Methods and their parameters."""

BASES: dict[type, type] = {
    BoundedHttpProtocol: HttpToolsProtocol,
    BoundedWebSocketProtocol: WebSocketsSansIOProtocol,
    protocol._PacedFlow: FlowControl,
    Server: uvicorn.Server,
}

USED_OF_OTHERS: list[tuple[type, str]] = [
    *(
        (RequestResponseCycle, name)
        for name in (
            *("scope", "transport", "flow", "message_event", "disconnected"),
            *("response_started", "response_complete", "chunked_encoding"),
        )
    ),
    *(
        (WebSocketsSansIOProtocol, name)
        for name in ("conn", "disconnected", "transport", "writable")
    ),
    *((FlowControl, name) for name in ("read_paused", "write_paused", "resume_reading")),
    *((Protocol, name) for name in ("state", "fail", "max_message_size", "extensions")),
    (ServerProtocol, "handshake_exc"),
    (Frame, "data"),
    (Request, "headers"),
]


@pytest.mark.parametrize(
    ("ours", "name"),
    [(ours, name) for ours, names in OVERRIDDEN.items() for name in names],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_what_is_overridden_takes_what_it_took(ours: type, name: str) -> None:
    base = BASES[ours]
    assert hasattr(base, name), f"{uvicorn.__version__} has no {base.__name__}.{name} any more"
    theirs = inspect.signature(getattr(base, name)).parameters
    assert [one for one in theirs if one != "self"] == OVERRIDDEN[ours][name]
    assert inspect.iscoroutinefunction(getattr(base, name)) == inspect.iscoroutinefunction(
        getattr(ours, name)
    )


@pytest.mark.parametrize("ours", OVERRIDDEN, ids=lambda ours: ours.__name__)
def test_all_that_is_overridden_is_listed(ours: type) -> None:
    """Also what a new release has under a name of ours, by accident."""
    base = BASES[ours]
    shared = {
        name
        for name, value in vars(ours).items()
        if hasattr(base, name) and (inspect.isfunction(value) or isinstance(value, property))
    }
    assert shared | {"capture_signals"} == OVERRIDDEN[ours].keys() | {"capture_signals"}


def names_of(kind: type) -> set[str]:
    """What instances have: methods, and what is assigned to ``self`` or declared."""
    found: set[str] = set()
    for each in kind.__mro__[:-1]:
        found |= vars(each).keys() | getattr(each, "__annotations__", {}).keys()
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(each)))
        except (OSError, TypeError):  # written in C
            continue
        for node in ast.walk(tree):
            if _is_of_self(node) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
    return found


def _is_of_self(node: ast.AST) -> TypeGuard[ast.Attribute]:
    is_attribute = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    return is_attribute and node.value.id == "self"  # type: ignore[attr-defined]


def used_by(ours: type) -> set[str]:
    """What a class of ours reads or changes of ``self`` and does not define itself: in its body, or
    where an instance begins."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(ours)))
    own = vars(ours).keys() | getattr(ours, "__annotations__", {}).keys()
    for function in ast.walk(tree):
        if getattr(function, "name", "") in ("__init__", "connection_made"):
            own |= {
                node.attr
                for node in ast.walk(function)
                if _is_of_self(node) and isinstance(node.ctx, ast.Store)
            }
    return {node.attr for node in ast.walk(tree) if _is_of_self(node)} - own


@pytest.mark.parametrize(
    ("ours", "name"),
    [(ours, name) for ours in OVERRIDDEN for name in sorted(used_by(ours))],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_what_is_used_is_there(ours: type, name: str) -> None:
    assert name in names_of(BASES[ours])


@pytest.mark.parametrize(
    ("kind", "name"), USED_OF_OTHERS, ids=lambda value: getattr(value, "__name__", value)
)
def test_what_is_used_of_their_parts_is_there(kind: type, name: str) -> None:
    assert name in names_of(kind)
