"""The AsyncAPI document of the WebSocket chat, made from the structs of ``schemas.ws``.

What the messages mean, in which order they come and how a socket ends is the text of that module,
which is the document's description too.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.schemas import ws
from gateway.schemas.openapi import package_version

CHANNEL = "/v1/chat"
_REFS = "#/components/schemas/{name}"

CLIENT_MESSAGES: Mapping[str, type[msgspec.Struct]] = {
    "auth": ws.Auth,
    "chat": ws.Chat,
    "resume": ws.Resume,
    "cancel": ws.Cancel,
    "ping": ws.Ping,
}
SERVER_MESSAGES: Mapping[str, type[msgspec.Struct]] = {
    "ready": ws.Ready,
    "started": ws.Started,
    "delta": ws.Delta,
    "done": ws.Done,
    "turnError": ws.TurnError,
    "socketError": ws.SocketError,
    "pong": ws.Pong,
}


def document() -> dict[str, Any]:
    """An AsyncAPI 3.0 document, from the server's side: it receives what clients send."""
    structs = {**CLIENT_MESSAGES, **SERVER_MESSAGES}
    _, schemas = msgspec.json.schema_components(list(structs.values()), ref_template=_REFS)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Sluice chat over WebSockets",
            "version": package_version(),
            "description": inspect.cleandoc(ws.__doc__ or ""),
        },
        "defaultContentType": "application/json",
        "channels": {
            "chat": {
                "address": CHANNEL,
                "messages": {name: _ref("messages", name) for name in structs},
                "bindings": {
                    "ws": {
                        "method": "GET",
                        "query": {
                            "type": "object",
                            "properties": {
                                "ticket": {
                                    "type": "string",
                                    "description": "Of POST /v1/ws-tickets.",
                                }
                            },
                        },
                    }
                },
            }
        },
        "operations": {
            "receive": _operation("receive", CLIENT_MESSAGES),
            "send": _operation("send", SERVER_MESSAGES),
        },
        "components": {
            "messages": {name: _message(name, struct) for name, struct in structs.items()},
            "schemas": schemas,
        },
    }


def _operation(action: str, messages: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "action": action,
        "channel": {"$ref": "#/channels/chat"},
        "messages": [{"$ref": f"#/channels/chat/messages/{name}"} for name in messages],
    }


def _message(name: str, struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {"name": name, "payload": _ref("schemas", struct.__name__)}


def _ref(kind: str, name: str) -> dict[str, str]:
    return {"$ref": f"#/components/{kind}/{name}"}
