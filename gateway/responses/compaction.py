"""Compaction: the model sums up what was said, and an item with the summary stands for it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

import msgspec

from gateway.errors import InvalidRequestError
from gateway.schemas.responses import CompactionItem, Item, MessageItem, ResponseFields

_ASK = (
    "Sum up our conversation so far, so that it can go on from your summary alone: what I want, "
    "what was found and decided, what was tried, and what remains to be done."
)
_HEAD = "This is a summary of our conversation so far:\n"


def asking(fields: ResponseFields) -> ResponseFields:
    """The fields of the response that sums up what ``fields`` have for input. Raises
    ``InvalidRequestError``."""
    if fields.conversation is not None:
        raise InvalidRequestError(
            "A conversation is not changed here; send its items as input.", param="conversation"
        )
    given = fields.input or []
    if not given and fields.previous_response_id is None:
        raise missing("input")
    if fields.model is None:
        raise missing("model")
    items = [_user(given)] if isinstance(given, str) else given
    return msgspec.structs.replace(
        fields, input=[*items, _user(_ASK)], store=False, tools=None, tool_choice=None, text=None
    )


def missing(field: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"Missing required parameter: {field}.", param=field, code="missing_required_parameter"
    )


def compacted(items: Sequence[Item], summary: str, item_id: str) -> list[Item]:
    """What stands for ``items`` from now on: their instructions, then the summary."""
    kept = [
        item
        for item in items
        if isinstance(item, MessageItem) and item.role in ("system", "developer")
    ]
    return [*kept, CompactionItem(id=item_id, encrypted_content=opaque(summary))]


def summary_in(item: CompactionItem, path: str) -> str:
    """What the model reads in place of the items. Raises ``InvalidRequestError``."""
    summary = plain(item.encrypted_content)
    if summary is None:
        raise InvalidRequestError("This server did not make it.", param=f"{path}.encrypted_content")
    return _HEAD + summary


def opaque(text: str) -> str:
    """A text of the client's own, for a field whose contents are no client's business."""
    return base64.urlsafe_b64encode(text.encode()).decode()


def plain(content: str) -> str | None:
    """What ``opaque`` has written; None if it is of another server."""
    try:
        return base64.b64decode(content, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def _user(text: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode({"role": "user", "content": text}))
