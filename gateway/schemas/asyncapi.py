"""The AsyncAPI document of the WebSockets, made from the table of routes and the structs of their
messages.

What the messages mean, in which order they come and how a socket ends is the text of the module
that defines them, which is the channel's description too.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any, get_args

import msgspec

from gateway.schemas.openapi import package_version
from gateway.schemas.operation import SOCKET, Operation

_REFS = "#/components/schemas/{name}"
_TICKET = {"type": "string", "description": "Of POST /v1/ws-tickets."}


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """An AsyncAPI 3.0 document, from the server's side: it receives what clients send."""
    sockets = {one.path.rpartition("/")[2]: one for one in operations if one.method == SOCKET}
    structs = {
        f"{channel}_{struct.__name__}": struct
        for channel, socket in sockets.items()
        for struct in (*get_args(socket.body), *get_args(socket.events))
    }
    refs, schemas = msgspec.json.schema_components(list(structs.values()), ref_template=_REFS)
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Sluice over WebSockets", "version": package_version()},
        "defaultContentType": "application/json",
        "channels": {name: _channel(name, socket) for name, socket in sockets.items()},
        "operations": {
            f"{action}_{name}": {
                "action": action,
                "channel": {"$ref": f"#/channels/{name}"},
                "messages": [
                    {"$ref": f"#/channels/{name}/messages/{struct.__name__}"}
                    for struct in get_args(messages)
                ],
            }
            for name, socket in sockets.items()
            for action, messages in (("receive", socket.body), ("send", socket.events))
        },
        "components": {
            "messages": {
                key: {"name": struct.__name__, "payload": ref}
                for (key, struct), ref in zip(structs.items(), refs, strict=True)
            },
            "schemas": schemas,
        },
    }


def _channel(name: str, socket: Operation) -> dict[str, Any]:
    messages = (*get_args(socket.body), *get_args(socket.events))
    module = sys.modules[get_args(socket.body)[-1].__module__]
    return {
        "address": socket.path,
        "description": inspect.cleandoc(module.__doc__ or ""),
        "messages": {
            one.__name__: {"$ref": f"#/components/messages/{name}_{one.__name__}"}
            for one in messages
        },
        "bindings": {
            "ws": {
                "method": "GET",
                "query": {"type": "object", "properties": {"ticket": _TICKET}},
            }
        },
    }
