"""The events of one response, in OpenAI's order, and the response object that they build.

    response.created, response.in_progress
    each output item:  output_item.added, its parts and deltas, output_item.done
    response.completed, or response.incomplete, or response.failed

No I/O, as in ``answers``. Deltas of text differ in a few characters only, so they are joined from
prepared pieces; all other events are rare enough to be encoded.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import orjson

from gateway.answers.chunks import obfuscated
from gateway.errors import ApiError
from gateway.generation.delta import Delta
from gateway.generation.events import Event, Made, Text
from gateway.generation.token_logprobs import TokenLogprob
from gateway.mcp.exchange import RemoteTool
from gateway.parsers.base import ToolCallDelta
from gateway.responses.compaction import opaque
from gateway.responses.items import output_id
from gateway.schemas.common import Usage
from gateway.schemas.responses import McpApprovalRequestItem, ResponseStatus

_encode = msgspec.json.Encoder().encode


TEXT_DELTA = "response.output_text.delta"


_PAD_AROUND = 2
"""The bytes around an event's data that count towards its padded size."""


def token_of_response(response_id: str) -> str:
    return response_id.partition("_")[2]


class ResponseEvents:
    """The ``Encoder`` of a response; after ``closing`` or ``failure`` comes ``last``.

    ``response`` is the response object as it is now: its status, and the output items that are
    done. Events are numbered from 0 without gaps.
    """

    def __init__(self, response: dict[str, Any], *, is_obfuscated: bool = False) -> None:
        """``response``: the object as ``response_object`` makes it. ``is_obfuscated``: pad deltas,
        so that their size does not reveal their text."""
        self.response = response
        self.finish_reason: str | None = None
        """As the last delta said; None as well if nothing was to be generated."""
        self._is_obfuscated = is_obfuscated
        self._end = b"}"
        """The end of each event: after the lane's name, if it has one."""
        self._token = token_of_response(response["id"])
        self._next_number = 0
        self._text: _Text | None = None
        self._call: _Call | None = None
        self.remote: Mapping[str, RemoteFunction] = {}
        """The functions that are tools of MCP servers."""
        self.called: list[RemoteCall] = []
        """The calls of such tools that the model has made, to be carried out."""
        self.has_opaque_reasoning = False
        """Whether items of reasoning hold it a second time, as clients send it back who keep no
        plain text."""
        self.waits_for_client = False
        """Whether a call was made that only the client can carry out, or allow."""
        self._logprobs: list[TokenLogprob] = []  # of tokens whose text is held back

    def set_lane(self, lane: str) -> None:
        """Name a WebSocket's lane in each event."""
        self._end = b',"stream_id":%b}' % orjson.dumps(lane)

    def opening(self) -> list[Event]:
        """The events of an accepted response; a ``background`` response is queued first."""
        created = self._lifecycle("response.created")
        if self.response["status"] != "queued":
            return [created, self._lifecycle("response.in_progress")]
        queued = self._lifecycle("response.queued")
        self.response["status"] = "in_progress"
        return [created, queued, self._lifecycle("response.in_progress")]

    def heartbeat(self) -> Event | None:
        """An event that changes nothing; None after ``closing`` or ``failure``, whose events have
        their numbers already and may be sent later."""
        if self.response["status"] not in ("queued", "in_progress"):
            return None
        return self._lifecycle("response.in_progress")

    def delta(self, delta: Delta) -> list[Event]:
        """The events of a delta's reasoning, text and calls. Its end has events of its own."""
        events: list[Event] = []
        if delta.reasoning:
            events += self._add_text(_Reasoning, delta.reasoning)
        self._logprobs += delta.logprobs
        if delta.content:
            events += self._add_text(_Text, delta.content)
        for piece in delta.tool_calls:
            events += self._add_call(piece)
        self.finish_reason = delta.finish_reason or self.finish_reason
        if delta.compliance is not None:
            self.response["structured_outputs"] = delta.compliance
        return events

    def closing(self, usage: Usage) -> list[Event]:
        """The events at the end of the output. From here on the response does not change."""
        finish_reason = self.finish_reason
        is_whole = finish_reason in ("stop", "tool_calls", None)
        events = self._close_item("completed" if is_whole else "incomplete")
        events += self._leave_calls()
        if is_whole and finish_reason is not None and not self._has_answer():
            # Clients expect a message, even an empty one.
            events += [*self._open_text(_Text), *self._close_item("completed")]
        self.response["usage"] = usage_object(usage)
        status: ResponseStatus = "completed"
        if finish_reason == "length":
            status = "incomplete"
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        elif finish_reason == "cancelled":
            status = "cancelled"
            self.response["incomplete_details"] = {"reason": "cancelled"}
        self.response["status"] = status
        if status == "completed":
            self.response["completed_at"] = int(time.time())
        return events

    def end_turn(self) -> list[Event]:
        """The events at the end of an output that is not the last one of the response."""
        self.finish_reason = None
        return self._close_item("completed")

    def listed(self, server_label: str, tools: Sequence[RemoteTool]) -> list[Event]:
        """The events of a list of tools."""
        place = len(self.response["output"])
        item: dict[str, Any] = {
            "id": output_id("mcp_list_tools", self._token, place),
            "type": "mcp_list_tools",
            "server_label": server_label,
            "tools": [],
            "error": None,
        }
        where = {"item_id": item["id"], "output_index": place}
        added = self._event("response.output_item.added", output_index=place, item=item)
        item = item | {"tools": [msgspec.to_builtins(tool) for tool in tools]}
        self.response["output"].append(item)
        return [
            added,
            self._event("response.mcp_list_tools.in_progress", **where),
            self._event("response.mcp_list_tools.completed", **where),
            self._event("response.output_item.done", output_index=place, item=item),
        ]

    def approved(self, remote: RemoteFunction, request: McpApprovalRequestItem) -> list[Event]:
        """The events of a call that the client has allowed; it is carried out now."""
        events = self._open_remote_call(remote, 0, approval_request_id=request.id)
        assert self._call is not None
        self._call.arguments.append(request.arguments)
        return [*events, *self._close_item("completed")]

    def carried_out(
        self, call: RemoteCall, output: str | None, error: dict[str, Any] | None
    ) -> list[Event]:
        """The events of a call's end; ``error`` if it failed."""
        status = "completed" if error is None else "failed"
        item = call.item | {"status": status, "output": output, "error": error}
        self.response["output"][call.place] = item
        self.called.remove(call)
        kind = f"response.mcp_call.{status}"
        return [
            self._event(kind, item_id=item["id"], output_index=call.place),
            self._event("response.output_item.done", output_index=call.place, item=item),
        ]

    def failure(self, error: ApiError) -> list[Event]:
        """The events of a failure. The output so far remains in the response."""
        events = [*self._close_item("incomplete"), *self._leave_calls()]
        self.response["status"] = "failed"
        self.response["error"] = error_object(error)
        return events

    def last(self) -> Event:
        """The last event, after ``closing`` or ``failure``, with the whole response.

        Neither OpenAI nor Open Responses has an event for ``cancelled``, and clients that wait for
        the end know no other: so it is ``response.incomplete``; ``incomplete_details`` says why.
        """
        status = self.response["status"]
        name = status if status in ("completed", "failed") else "incomplete"
        return self._lifecycle(f"response.{name}")

    def body(self) -> bytes:
        """The response object as it is now, as JSON."""
        return _encode(self.response)

    def text_form(self, index: int) -> Made | None:
        return None if self._is_obfuscated else Made(TEXT_DELTA, self._text_data)

    def _text_data(self, text: Text) -> bytes | None:
        message = self._text
        if type(message) is not _Text or self._logprobs:
            return None
        self._next_number = (number := self._next_number) + 1
        return message.text(text, number)

    def _has_answer(self) -> bool:
        answers = ("message", "function_call", "mcp_approval_request")
        return any(item["type"] in answers for item in self.response["output"])

    # -- items

    def _add_text(self, kind: type[_Text], text: str) -> list[Event]:
        events = [] if type(self._text) is kind else self._open_text(kind)
        assert self._text is not None
        logprobs: list[TokenLogprob] = []
        if kind.has_logprobs:
            logprobs, self._logprobs = self._logprobs, []
        data = self._text.delta(text, self._number(), logprobs)
        return [*events, self._padded(f"{kind.event}.delta", data)]

    def _open_text(self, kind: type[_Text]) -> list[Event]:
        events = self._close_item("completed")
        place = len(self.response["output"])
        text_id = output_id(kind.item_type, self._token, place)
        text = self._text = kind(text_id, place, self._end)
        return [
            *events,
            self._event("response.output_item.added", output_index=place, item=text.item),
            self._event(f"{text.part_event}.added", **text.where, part=text.part("", [])),
        ]

    def _add_call(self, piece: ToolCallDelta) -> list[Event]:
        events: list[Event] = []
        if self._call is None or self._call.index != piece.index:
            events += self._open_call(piece)
        assert self._call is not None
        arguments = piece.function.arguments
        if isinstance(arguments, str) and arguments:
            self._call.arguments.append(arguments)
            if self._call.needs_approval:
                return events
            kind = f"response.{self._call.kind}_arguments.delta"
            data = self._data(
                kind,
                item_id=self._call.item["id"],
                output_index=self._call.place,
                delta=arguments,
            )
            events.append(self._padded(kind, data))
        return events

    def _open_call(self, piece: ToolCallDelta) -> list[Event]:
        events = self._close_item("completed")
        if (remote := self.remote.get(piece.function.name or "")) is not None:
            return [*events, *self._open_remote_call(remote, piece.index)]
        place = len(self.response["output"])
        item = {
            "id": output_id("function_call", self._token, place),
            "type": "function_call",
            "status": "in_progress",
            "call_id": piece.id,
            "name": piece.function.name,
            "arguments": "",
        }
        self._call = _Call(item, place, piece.index)
        added = self._event("response.output_item.added", output_index=place, item=item)
        return [*events, added]

    def _open_remote_call(
        self, remote: RemoteFunction, index: int, approval_request_id: str | None = None
    ) -> list[Event]:
        place = len(self.response["output"])
        item: dict[str, Any]
        known = {"server_label": remote.server_label, "name": remote.name, "arguments": ""}
        if remote.needs_approval and approval_request_id is None:
            # Nothing is sent before it is whole, because there are no events for its parts.
            kind = "mcp_approval_request"
            item = {"id": output_id(kind, self._token, place), "type": kind, **known}
            self._call = _Call(item, place, index, remote)
            return []
        item = {
            "id": output_id("mcp_call", self._token, place),
            "type": "mcp_call",
            "status": "in_progress",
            "approval_request_id": approval_request_id,
            **known,
            "output": None,
            "error": None,
        }
        self._call = _Call(item, place, index, remote)
        return [
            self._event("response.output_item.added", output_index=place, item=item),
            self._event("response.mcp_call.in_progress", item_id=item["id"], output_index=place),
        ]

    def _close_item(self, status: str) -> list[Event]:
        """End the open item, if any, and add it to the response."""
        if self._text is not None:
            text, self._text = self._text, None
            return self._close_text(text, status)
        if self._call is not None:
            call, self._call = self._call, None
            return self._close_call(call, status)
        return []

    def _close_text(self, text: _Text, status: str) -> list[Event]:
        if text.has_logprobs:  # The last token may have had no text of its own.
            text.logprobs += self._logprobs
            self._logprobs = []
        said: str = orjson.loads(b'"%b"' % b"".join(text.said))
        part = text.part(said, text.logprobs)
        item = text.item | {"status": status, **text.parts(said, text.logprobs)}
        if self.has_opaque_reasoning and isinstance(text, _Reasoning):
            item["encrypted_content"] = opaque(said)
        self.response["output"].append(item)
        more = {"logprobs": text.logprobs} if text.has_logprobs else {}
        return [
            self._event(f"{text.event}.done", **text.where, text=said, **more),
            self._event(f"{text.part_event}.done", **text.where, part=part),
            self._event("response.output_item.done", output_index=text.place, item=item),
        ]

    def _close_call(self, call: _Call, status: str) -> list[Event]:
        arguments = "".join(call.arguments)
        if call.remote is not None:
            return self._close_remote_call(call, call.remote, arguments, status)
        item = call.item | {"status": status, "arguments": arguments}
        self.response["output"].append(item)
        self.waits_for_client = True
        done = self._event(
            "response.function_call_arguments.done",
            item_id=item["id"],
            output_index=call.place,
            name=item["name"],
            arguments=arguments,
        )
        return [
            done,
            self._event("response.output_item.done", output_index=call.place, item=item),
        ]

    def _leave_calls(self) -> list[Event]:
        """The events of calls that are not carried out any more."""
        events: list[Event] = []
        while self.called:
            _, item, place = self.called.pop(0)
            item["status"] = "incomplete"
            events += [
                self._event("response.mcp_call.failed", item_id=item["id"], output_index=place),
                self._event("response.output_item.done", output_index=place, item=item),
            ]
        return events

    def _close_remote_call(
        self, call: _Call, remote: RemoteFunction, arguments: str, status: str
    ) -> list[Event]:
        item = call.item | {"arguments": arguments}
        if call.needs_approval:
            if status != "completed":  # There is nothing to allow.
                return []
            self.response["output"].append(item)
            self.waits_for_client = True
            return [
                self._event("response.output_item.added", output_index=call.place, item=item),
                self._event("response.output_item.done", output_index=call.place, item=item),
            ]
        where = {"item_id": item["id"], "output_index": call.place}
        self.response["output"].append(item)
        if status == "completed":
            self.called.append(RemoteCall(remote, item, call.place))
            return [self._event("response.mcp_call_arguments.done", **where, arguments=arguments)]
        item["status"] = status
        return [
            self._event("response.mcp_call.failed", **where),
            self._event("response.output_item.done", output_index=call.place, item=item),
        ]

    # -- writing

    def _lifecycle(self, kind: str) -> Event:
        return self._event(kind, response=self.response)

    def _event(self, kind: str, **fields: object) -> Event:
        return self._ended(kind, self._data(kind, **fields))

    def _data(self, kind: str, **fields: object) -> bytes:
        return _encode({"type": kind, "sequence_number": self._number(), **fields})

    def _padded(self, kind: str, data: bytes) -> Event:
        if self._is_obfuscated:
            data = obfuscated(data, num_around=_PAD_AROUND)
        return self._ended(kind, data)

    def _ended(self, kind: str, data: bytes) -> Event:
        return Event(kind, data[:-1] + self._end)

    def _number(self) -> int:
        number = self._next_number
        self._next_number += 1
        return number


class _Text:
    """A message that is being generated."""

    item_type = "message"
    event = "response.output_text"
    part_event = "response.content_part"
    index = "content_index"
    has_logprobs = True

    def __init__(self, item_id: str, place: int, end: bytes) -> None:
        """``end``: replaces the last brace of what ``text`` returns."""
        self.item = self._item(item_id)
        self.place = place
        self.where = {"item_id": item_id, "output_index": place, self.index: 0}
        self.said: list[bytes] = []
        """The text so far, as the inside of a JSON string."""
        self.logprobs: list[TokenLogprob] = []
        self._head = b'{"type":%s,"sequence_number":' % orjson.dumps(f"{self.event}.delta")
        self._middle = b"," + orjson.dumps(self.where)[1:-1] + b',"delta":"'
        self._tail = b'","logprobs":[]}' if self.has_logprobs else b'"}'
        self._text_tail = self._tail[:-1] + end

    def delta(self, text: str, number: int, logprobs: list[TokenLogprob]) -> bytes:
        """The data of the event that adds ``text``."""
        written = orjson.dumps(text)[1:-1]
        self.said.append(written)
        self.logprobs += logprobs
        tail = b'","logprobs":%b}' % _encode(logprobs) if logprobs else self._tail
        return b"%b%d%b%b%b" % (self._head, number, self._middle, written, tail)

    def text(self, text: bytes, number: int) -> bytes:
        """As ``delta`` without log-probabilities. ``text``: as the inside of a JSON string."""
        self.said.append(text)
        return b"%b%d%b%b%b" % (self._head, number, self._middle, text, self._text_tail)

    def part(self, text: str, logprobs: list[TokenLogprob]) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def parts(self, text: str, logprobs: list[TokenLogprob]) -> dict[str, Any]:
        """The fields of the finished item that hold ``text``."""
        return {"content": [self.part(text, logprobs)]}

    def _item(self, item_id: str) -> dict[str, Any]:
        return {
            "id": item_id,
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }


class _Reasoning(_Text):
    """Reasoning that is being generated; it is returned in full.

    It comes by the events of a summary, the only ones of reasoning whose names the released Open
    Responses (2026-04-24) and the clients share: for ``content`` the one says
    ``response.reasoning.delta``, the others ``response.reasoning_text.delta``. The finished item
    has it in ``content``, too, for clients that look nowhere else.
    """

    item_type = "reasoning"
    event = "response.reasoning_summary_text"
    part_event = "response.reasoning_summary_part"
    index = "summary_index"
    has_logprobs = False

    def part(self, text: str, logprobs: list[TokenLogprob]) -> dict[str, Any]:
        return {"type": "summary_text", "text": text}

    def parts(self, text: str, logprobs: list[TokenLogprob]) -> dict[str, Any]:
        thought = {"type": "reasoning_text", "text": text}
        return {"summary": [self.part(text, logprobs)], "content": [thought]}

    def _item(self, item_id: str) -> dict[str, Any]:
        return {"id": item_id, "type": "reasoning", "status": "in_progress", "summary": []}


class RemoteFunction(NamedTuple):
    """A tool of an MCP server that the model may call."""

    server_label: str
    name: str
    """As the server calls it."""
    needs_approval: bool


class RemoteCall(NamedTuple):
    """A call of such a tool that is to be carried out."""

    function: RemoteFunction
    item: dict[str, Any]
    place: int
    """That of its item in the output."""


class _Call:
    """A function call that is being generated."""

    def __init__(
        self, item: dict[str, Any], place: int, index: int, remote: RemoteFunction | None = None
    ) -> None:
        self.item = item
        self.place = place
        self.remote = remote
        self.kind = "function_call" if remote is None else "mcp_call"
        self.needs_approval = item["type"] == "mcp_approval_request"
        self.index = index
        """The call's number among those of the answer."""
        self.arguments: list[str] = []


def usage_object(usage: Usage) -> dict[str, Any]:
    """The usage object of Responses."""
    details = usage.prompt_tokens_details
    of_images = (
        {} if details.image_tokens is msgspec.UNSET else {"image_tokens": details.image_tokens}
    )
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": details.cached_tokens,
            "cache_write_tokens": 0,
            **of_images,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {
            "reasoning_tokens": usage.completion_tokens_details.reasoning_tokens
        },
        "total_tokens": usage.total_tokens,
    }


def error_object(error: ApiError) -> dict[str, Any]:
    """The object in ``response.error``, whose codes are a closed list of OpenAI's."""
    code = "server_error"
    if error.status == 429:
        code = "rate_limit_exceeded"
    elif error.status < 500:
        code = "invalid_prompt"
    return {"code": code, "message": error.object().message}
