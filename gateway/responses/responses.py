"""The responses of the Responses API: begun, retrieved, continued, cancelled and deleted.

    HTTP, WebSocket ──► Responses.begin ──► ResponseRun ──► events for its reader
                             │                   │
              earlier responses from         stored before its last event is sent,
              the store or the socket        so that the client can continue it at once

Only the worker that runs a response knows it; when it has ended it is in the store, where every
worker finds it. A ``background`` response is stored when it begins as well, because its client has
no connection that would break if the worker crashed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from gateway.admission.admission import Admission
from gateway.admission.admitted import Admitted
from gateway.admission.request import GenerationRequest
from gateway.concurrency.owned_tasks import OwnedTasks
from gateway.config import Config
from gateway.errors import (
    ApiError,
    ContextLengthExceeded,
    InvalidRequestError,
    ResponseNotFound,
    quoted,
    to_api_error,
)
from gateway.generation.generation import Generation, Generations
from gateway.mcp.servers import McpServers
from gateway.peers.peers import PeerGone, Peers
from gateway.peers.routed_ids import mint, worker_of
from gateway.peers.wire import EndResponse, Part, RunningResponse
from gateway.responses import fields as response_fields
from gateway.responses.compaction import missing
from gateway.responses.conversations import MAX_BYTES, ConversationItems, History
from gateway.responses.events import ResponseEvents
from gateway.responses.items import (
    MAX_ITEMS,
    decode_input,
    name_items,
    plain_items,
    token_of,
    without_oldest,
)
from gateway.responses.object import conversation_of, response_object
from gateway.responses.remote import RemoteTools
from gateway.responses.remote import find as find_tools
from gateway.responses.run import Agent, ResponseRun
from gateway.schemas.chat import ChatFields
from gateway.schemas.responses import (
    FunctionChoice,
    Item,
    ItemReference,
    McpChoice,
    McpTool,
    ResponseFields,
    Tool,
)
from gateway.streams.trim_schedule import TrimSchedule
from tenants.errors import TenantsError
from tenants.lanes import Lanes
from tenants.outage import CALM_S, OutageLog
from tenants.request_ids import new_request_id
from tenants.shared import SharedState, StoredResponse
from tenants.types import Principal, Tenant

logger = logging.getLogger(__name__)

_UNENDED = ("queued", "in_progress")
MAX_LINEAGE = 1000
"""The most responses in a chain, from the first to the one that is continued."""
MOST_AT_ONCE = 2
"""Requests of one tenant that hold much of what they continue, in each worker."""
MUCH_BYTES = 256 * 1024


class Asked(NamedTuple):
    """What a response is made from."""

    principal: Principal
    fields: ResponseFields
    tools: Sequence[Tool]
    remote: RemoteTools | None
    """The tools of MCP servers; None if there are none."""
    earlier: Sequence[Item]
    own: Sequence[Item]
    items: Sequence[Item]
    """What the model is shown: at first the earlier items and the request's own."""
    num_said: int = 0
    """Of the items, those that the response itself has said."""

    @property
    def awaits_calls(self) -> bool:
        """Whether the model is to see the results of calls that are made first."""
        return self.remote is not None and bool(self.remote.approved)

    def chat(self) -> ChatFields:
        """Raises ``ApiError``."""
        num_own = len(self.own) + self.num_said
        return response_fields.chat_fields(
            self.fields, self.tools, self.items, num_own=num_own, remote=self.remote
        )

    def request(self, chat: ChatFields, request_id: UUID) -> GenerationRequest:
        return GenerationRequest(
            id=request_id,
            principal=self.principal,
            model=self.fields.model,
            fields=chat,
            scope="responses",
            client_name=response_fields.client_name,
            ignored=response_fields.ignored(self.fields),
        )

    def after(self, output: Sequence[Any], num_spent: int) -> Asked:
        """The next turn: after these output items, for which so many tokens were generated. The
        model need not call a tool again, and cannot once no call is left."""
        said = plain_items([msgspec.Raw(msgspec.json.encode(item)) for item in output])
        assert self.remote is not None
        most, choice = self.fields.max_output_tokens, self.fields.tool_choice
        fields = msgspec.structs.replace(
            self.fields,
            max_output_tokens=None if most is None else most - num_spent,
            tool_choice="none"
            if self.remote.is_spent
            else "auto"
            if choice == "required" or isinstance(choice, FunctionChoice | McpChoice)
            else choice,
        )
        items = [*self.earlier, *self.own, *said]
        return self._replace(fields=fields, items=items, num_said=len(said))


class Responses:
    """The responses of this gateway worker."""

    def __init__(
        self,
        config: Config,
        shared: SharedState,
        conversations: ConversationItems,
        peers: Peers,
        admission: Admission,
        generations: Generations,
        mcp: McpServers,
    ) -> None:
        self._mcp = mcp
        self._shared = shared
        self._conversations = conversations
        self._peers = peers
        self._admission = admission
        self._generations = generations
        self._retention = timedelta(seconds=config.tenants.response_retention_s)
        self._max_bytes = config.tenants.max_response_bytes
        self._trims = TrimSchedule()
        self._lanes = Lanes(MOST_AT_ONCE)
        """Of requests that continue something, from reading that to their admission."""
        self.remembered = Counter[UUID]()
        """The bytes that the WebSockets of each tenant remember, to be continued."""
        self._running: dict[str, ResponseRun] = {}
        self._tasks = OwnedTasks()
        self._unstored = OutageLog(logger, level=logging.ERROR, calm_s=CALM_S)
        peers.answer(RunningResponse, self._part_for_peer)
        peers.answer(EndResponse, self._end_for_peer)

    # -- beginning

    async def begin(
        self,
        fields: ResponseFields,
        *,
        principal: Principal,
        request_id: UUID,
        is_background: bool = False,
        earlier: History | None = None,
        generate: bool = True,
        is_continued: bool = False,
    ) -> ResponseRun:
        """Check a request completely, and submit it. The caller closes the run.

        earlier: the responses that it continues, if they are known; otherwise they are read from
        the store. generate: False only stores the input, to be continued. is_continued: the run is
        asked for what it continues, which may be megabytes, and keeps it. Raises ``ApiError`` with
        the names that fields have in Responses.
        """
        response_id = mint("resp", self._peers.worker_id)
        admitted = None
        async with self._read(fields, principal, response_id, earlier) as asked:
            asked.chat()  # raises for what is wrong in it
            if not (generate and asked.awaits_calls):
                admitted = await self._admitted(asked, request_id)
        if admitted is not None and not generate:
            self._generations.release(admitted)
        return self._start(
            admitted,
            response_object(
                fields,
                asked.tools,
                admitted,
                response_id=response_id,
                model=self._admission.models.default.name if admitted is None else admitted.model,
                is_background=is_background,
            ),
            asked=asked,
            generate=generate,
            earlier=asked.earlier if is_continued else (),
        )

    async def count(self, fields: ResponseFields, *, principal: Principal) -> int:
        """The number of input tokens that the response would have. Raises as ``begin`` does."""
        async with self._read(fields, principal, "resp_") as asked:
            return await self._admission.count(asked.request(asked.chat(), new_request_id()))

    async def _admitted(self, asked: Asked, request_id: UUID) -> Admitted:
        """Admit the chat of a response.

        With ``truncation`` "auto", items that do not fit are left out, the oldest first. Each try
        leaves out twice as many, so there are few tries, and at most half of what is left out would
        have fit.
        """
        num_dropped = 0
        while True:
            try:
                return await self._admission.admit(asked.request(asked.chat(), request_id))
            except ContextLengthExceeded:
                num_dropped = max(1, 2 * num_dropped)
                shorter = without_oldest(asked.items, num_dropped)
                if asked.fields.truncation != "auto" or not shorter:
                    raise
                asked = asked._replace(items=shorter)

    async def _begin_turn(
        self, asked: Asked, output: Sequence[Any], num_spent: int
    ) -> Generation | None:
        """Go on from what a response has said, for which so many tokens were generated; None if it
        may have no more. Raises ``ApiError``."""
        most = asked.fields.max_output_tokens
        if most is not None and num_spent >= most:
            return None
        try:
            admitted = await self._admitted(asked.after(output, num_spent), new_request_id())
            return self._generations.begin(admitted)
        except Exception as exc:
            raise to_api_error(exc) from exc

    @asynccontextmanager
    async def _read(
        self,
        fields: ResponseFields,
        principal: Principal,
        response_id: str,
        earlier: History | None = None,
    ) -> AsyncIterator[Asked]:
        """Raises ``ApiError``. A short request may continue megabytes: few of a tenant do so at a
        time, until the block ends."""
        response_fields.check(fields)
        tools = response_fields.decode_tools(fields.tools)
        tenant_id = principal.tenant.id
        if earlier is None and (conversation_of(fields) or fields.previous_response_id) is None:
            earlier = History()
        turn = None if earlier is not None else await self._lanes.turn(tenant_id)
        try:
            earlier = earlier or await self._earlier(principal.tenant, fields)
            if turn is not None and earlier.num_bytes < MUCH_BYTES:
                turn.leave()
            own = await self._own_items(tenant_id, fields, response_id)
            if not own and not earlier.items:
                raise missing("input")
            items = [*earlier.items, *own]
            remote = None
            if any(isinstance(tool, McpTool) for tool in tools):
                servers, limit = self._mcp, fields.max_tool_calls
                remote = await find_tools(servers, tenant_id, tools, items, own, limit)
            yield Asked(principal, fields, tools, remote, earlier.items, own, items)
        finally:
            if turn is not None:
                turn.leave()

    def _start(
        self,
        admitted: Admitted | None,
        response: dict[str, Any],
        *,
        asked: Asked,
        generate: bool,
        earlier: Sequence[Item],
    ) -> ResponseRun:
        generation = None
        if admitted is not None and generate:
            generation = self._generations.begin(admitted)
        agent = None
        if asked.remote is not None and generate:
            agent = Agent(asked.remote, partial(self._begin_turn, asked))
        encoder = ResponseEvents(response, is_obfuscated=_is_obfuscated(asked.fields))
        encoder.has_opaque_reasoning = response_fields.ENCRYPTED in (asked.fields.include or ())
        if agent is not None:
            encoder.remote = agent.tools.by_name
        run = ResponseRun(
            encoder,
            generation,
            tenant_id=asked.principal.tenant.id,
            earlier=earlier,
            own=asked.own,
            on_end=self._ended,
            on_abandon=self._abandoned,
            agent=agent,
        )
        self._running[run.id] = run
        return run

    async def _earlier(self, tenant: Tenant, fields: ResponseFields) -> History:
        tenant_id = tenant.id
        conversation_id, response_id = conversation_of(fields), fields.previous_response_id
        if conversation_id is not None:
            self._conversations.check_kept(tenant)
            return await self._conversations.all_items(tenant_id, conversation_id)
        assert response_id is not None
        line = await self._shared.lineage(
            tenant_id,
            response_id,
            max_length=MAX_LINEAGE,
            max_bytes=MAX_BYTES,
            retention=self._retention,
        )
        num_bytes = sum(len(response.body) + len(response.input) for response in line)
        if num_bytes > MAX_BYTES:
            raise _too_much(f"{MAX_BYTES} bytes")
        if len(line) == MAX_LINEAGE and line[0].previous_response_id is not None:
            raise _too_much(f"{MAX_LINEAGE} responses")
        if not line or line[0].previous_response_id is not None:
            raise previous_not_found(line[0].previous_response_id or "" if line else response_id)
        if line[-1].status in _UNENDED:
            raise InvalidRequestError(
                f"The response {quoted(response_id)} has not ended yet.",
                param="previous_response_id",
                code="previous_response_in_progress",
            )
        raw = [item for response in line for item in _raw_items(response)]
        if len(raw) > MAX_ITEMS:
            raise _too_much(f"{MAX_ITEMS} items")
        return History(response_id, plain_items(raw), num_bytes)

    async def _own_items(
        self, tenant_id: UUID, fields: ResponseFields, response_id: str
    ) -> list[Item]:
        given = decode_input(fields.input if fields.input is not None else [])
        items: list[Item] = []
        for index, item in enumerate(given):
            if isinstance(item, ItemReference):
                items.append(await self._referred(tenant_id, item.id, f"input[{index}].id"))
            else:
                items.append(item)
        if fields.conversation is not None:  # in which each item has an id of its own
            items = [msgspec.structs.replace(item, id=None) for item in items]
        return name_items(items, response_id.partition("_")[2])

    async def _referred(self, tenant_id: UUID, item_id: str, param: str) -> Item:
        token = token_of(item_id)
        response = None
        if token is not None:
            response = await self._shared.find_response(tenant_id, f"resp_{token}")
        for item in items_of(response) if response is not None else ():
            if item.id == item_id:
                return item
        raise InvalidRequestError(
            f"There is no stored item {quoted(item_id)}.", param=param, code="item_not_found"
        )

    # -- ending

    async def _ended(self, run: ResponseRun) -> None:
        """Store a response that has ended, in a task that a cancelled reader cannot interrupt."""
        if not run.is_stored and run.conversation_id is None:
            self._running.pop(run.id, None)
            return
        await asyncio.shield(self._tasks.start(self._store(run), name=f"store {run.id}"))

    async def _store(self, run: ResponseRun) -> None:
        try:
            await self._extend_conversation(run)
            if run.is_stored:
                await self.keep(run)
        except TenantsError as error:
            # Its client still gets the answer, with ``store`` false.
            self._unstored.failed("%s is not stored: %s", run.id, error)
            run.mark_unstored()
        else:
            self._unstored.succeeded("Responses are stored again")
        finally:
            self._running.pop(run.id, None)

    async def _extend_conversation(self, run: ResponseRun) -> None:
        """Add what was said to the conversation. Raises ``TenantsError``; a response whose
        conversation is gone or full says so."""
        name = run.conversation_id
        if name is None or run.status not in ("completed", "incomplete"):
            return
        try:
            await self._conversations.add(run.tenant_id, name, run.said())
        except (ApiError, TenantsError) as exc:
            run.leave_conversation()
            if isinstance(exc, TenantsError):
                raise

    async def keep(self, run: ResponseRun) -> None:
        """Store a run as it stands. Raises ``TenantsError``."""
        record = run.record()
        await self._shared.put_response(record, self._retention)
        size = len(record.body) + len(record.input)
        if self._trims.is_due(run.tenant_id, size, self._max_bytes):
            await self._shared.trim_responses(run.tenant_id, self._max_bytes)

    def _abandoned(self, run: ResponseRun) -> None:
        self._tasks.start(run.give_up(), name=f"give up {run.id}")

    async def close(self, within_s: float) -> None:
        """Wait until all ended responses are stored; those that a hanging engine keeps waiting end
        once it is closed."""
        await self._tasks.wait(within_s)

    # -- finding again

    def running(self, tenant_id: UUID, response_id: str) -> ResponseRun | None:
        """A response that runs in this worker and can be retrieved; None if there is none."""
        run = self._running.get(response_id)
        return run if run is not None and run.tenant_id == tenant_id and run.is_stored else None

    async def body(self, tenant_id: UUID, response_id: str) -> bytes:
        """The response object. Raises ``ResponseNotFound``, ``TenantsError``."""
        return await self._part(tenant_id, response_id, "body")

    async def input_items(self, tenant_id: UUID, response_id: str) -> bytes:
        """Its own input items, as a JSON array. Raises as ``body`` does."""
        return await self._part(tenant_id, response_id, "input")

    async def _part(self, tenant_id: UUID, response_id: str, part: Part) -> bytes:
        if (run := self.running(tenant_id, response_id)) is not None:
            return _part_of(run.record(), part)
        found = await self._shared.find_response(tenant_id, response_id)
        if found is not None and found.status not in _UNENDED:
            return _part_of(found, part)
        wanted = RunningResponse(response_id=response_id, tenant_id=tenant_id, part=part)
        try:
            return await self._ask(wanted)
        except (PeerGone, ResponseNotFound) as exc:
            # It may have ended in between.
            found = await self._stored(tenant_id, response_id)
            if found.status in _UNENDED and isinstance(exc, PeerGone):
                found = await self._fail(found)
            return _part_of(found, part)

    async def _stored(self, tenant_id: UUID, response_id: str) -> StoredResponse:
        found = await self._shared.find_response(tenant_id, response_id)
        if found is None:
            raise _not_found(response_id)
        return found

    async def _fail(self, response: StoredResponse) -> StoredResponse:
        """Mark a response as failed, because the worker that ran it has died."""
        body = msgspec.json.decode(response.body)
        body["status"] = "failed"
        body["error"] = {"code": "server_error", "message": "The server that ran this went away."}
        failed = msgspec.structs.replace(response, status="failed", body=msgspec.json.encode(body))
        await self._shared.put_response(failed, self._retention)
        return failed

    async def cancel(self, tenant_id: UUID, response_id: str) -> bytes:
        """End a running response and return the response object; one that has ended stays as it is.

        Raises ``ResponseNotFound``, ``TenantsError``.
        """
        wanted = EndResponse(response_id=response_id, tenant_id=tenant_id)
        if not await self._end(wanted):
            with contextlib.suppress(PeerGone, ResponseNotFound):  # It has ended.
                await self._ask(wanted)
        return await self.body(tenant_id, response_id)

    async def delete(self, tenant_id: UUID, response_id: str) -> None:
        """Delete a response, ending it if it runs. Raises as ``cancel`` does."""
        wanted = EndResponse(response_id=response_id, tenant_id=tenant_id, is_deleted=True)
        was_running = await self._end(wanted)
        if not was_running:
            with contextlib.suppress(PeerGone, ResponseNotFound):
                await self._ask(wanted)
                was_running = True
        if not await self._shared.delete_response(tenant_id, response_id) and not was_running:
            raise _not_found(response_id)

    async def _end(self, wanted: EndResponse) -> bool:
        """End a response that runs here; False if it does not."""
        run = self.running(wanted.tenant_id, wanted.response_id)
        if run is None:
            return False
        if wanted.is_deleted:
            run.is_stored = False
        await asyncio.shield(self.begin_to_end(run))
        return True

    def begin_to_end(self, run: ResponseRun) -> asyncio.Task[None]:
        """``end`` a run in a task of ours, because whoever asks for it may leave."""
        return self._tasks.start(run.end(), name=f"end {run.id}")

    # -- other workers

    async def _ask(self, wanted: RunningResponse | EndResponse) -> bytes:
        """Ask the worker that runs a response. Raises ``PeerGone``, ``ResponseNotFound``."""
        worker_id = worker_of(wanted.response_id)
        if worker_id is None or worker_id == self._peers.worker_id:
            raise _not_found(wanted.response_id)
        return await self._peers.ask(worker_id, wanted)

    async def _part_for_peer(self, wanted: RunningResponse) -> bytes:
        run = self.running(wanted.tenant_id, wanted.response_id)
        if run is None:
            raise _not_found(wanted.response_id)
        return _part_of(run.record(), wanted.part)

    async def _end_for_peer(self, wanted: EndResponse) -> bytes:
        if not await self._end(wanted):
            raise _not_found(wanted.response_id)
        return b""


def _part_of(response: StoredResponse, part: Part) -> bytes:
    return response.body if part == "body" else response.input


def _not_found(response_id: str) -> ResponseNotFound:
    return ResponseNotFound(f"There is no response {quoted(response_id)}.")


class _Output(msgspec.Struct):
    output: list[msgspec.Raw]


_input_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_output_decoder = msgspec.json.Decoder(_Output)


def items_of(response: StoredResponse) -> list[Item]:
    """The input items of a stored response, followed by its output items."""
    return plain_items(_raw_items(response))


def _raw_items(response: StoredResponse) -> list[msgspec.Raw]:
    return [*_input_decoder.decode(response.input), *_output_decoder.decode(response.body).output]


def _is_obfuscated(fields: ResponseFields) -> bool:
    return fields.stream_options is not None and bool(fields.stream_options.include_obfuscation)


def _too_much(most: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"What a response continues has at most {most}, and this is more: begin anew, with a "
        "summary of it (/v1/responses/compact makes one).",
        param="previous_response_id",
    )


def previous_not_found(response_id: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"Previous response with id {quoted(response_id)} not found.",
        param="previous_response_id",
        code="previous_response_not_found",
    )
