"""The tools of MCP servers in one response: what the model is shown of them, and their calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from gateway.errors import (
    FailedDependency,
    InvalidRequestError,
    PayloadTooLarge,
    UnsupportedParameter,
    quoted,
)
from gateway.mcp.exchange import CallFailed, Exchange, RemoteTool
from gateway.mcp.servers import McpServers
from gateway.responses.events import RemoteCall, RemoteFunction
from gateway.responses.items import function_name
from gateway.schemas.responses import (
    FunctionTool,
    Item,
    McpApproval,
    McpApprovalRequestItem,
    McpApprovalResponseItem,
    McpCallItem,
    McpFilter,
    McpListToolsItem,
    McpTool,
    Tool,
)
from gateway.transport import body_shape

MAX_HEADERS = 32
_OWN_HEADERS = {"host", "connection", "content-length", "transfer-encoding", "accept", "te"}


class Approved(NamedTuple):
    """A call that the client has allowed."""

    function: RemoteFunction
    request: McpApprovalRequestItem


class RemoteTools:
    """Made by ``find``. Exchanges with servers are made one after the other."""

    def __init__(self, servers: McpServers, max_calls: int) -> None:
        self._servers = servers
        self._exchanges: dict[str, Exchange] = {}
        self._num_left = max_calls
        self.listed: list[tuple[str, list[RemoteTool]]] = []
        """What was listed for this response, by the server's label."""
        self.functions: list[FunctionTool] = []
        """What the model is shown."""
        self.by_name: dict[str, RemoteFunction] = {}
        self.approved: list[Approved] = []
        """To be called before the model says anything."""

    @property
    def is_spent(self) -> bool:
        """Whether no further call may be made."""
        return self._num_left <= 0

    def names(self, server_label: str, tool: str | None) -> list[str]:
        """What the model calls a server's tool, or all of its tools."""
        return [
            name
            for name, function in self.by_name.items()
            if function.server_label == server_label and tool in (None, function.name)
        ]

    async def call(self, call: RemoteCall) -> tuple[str | None, dict[str, Any] | None]:
        """What a call answers, or how it failed."""
        if self.is_spent:
            return None, _failed("No further call may be made for this response.")
        self._num_left -= 1
        text = call.item["arguments"] or "{}"
        try:
            await body_shape.check(text.encode())
            arguments = msgspec.json.decode(text, type=dict[str, Any])
        except PayloadTooLarge as error:
            return None, _failed(f"They are too large to be read: {error}")
        except (msgspec.DecodeError, RecursionError):
            return None, _failed("The arguments are no JSON object.")
        function = call.function
        exchange = self._exchanges[function.server_label]
        try:
            result = await self._servers.call(exchange, function.name, arguments)
        except CallFailed as error:
            return None, {"type": error.kind, "code": error.code, "message": error.message}
        return (None, _failed(result.text)) if result.is_error else (result.text, None)

    async def add(
        self, tool: McpTool, tenant_id: UUID, items: Sequence[Item], taken: set[str]
    ) -> None:
        """Add a server's tools, whose names are not to be among ``taken``, to which they are added.
        Raises ``ApiError`` naming the tool's field, and ``TenantsError``."""
        label = tool.server_label
        if label in self._exchanges:
            raise InvalidRequestError("Another server has this label.", param="server_label")
        exchange = await self._servers.find(tenant_id, _url(tool), _headers(tool))
        self._exchanges[label] = exchange
        known = [
            item
            for item in items
            if isinstance(item, McpListToolsItem) and item.server_label == label
        ]
        if known and known[-1].error is None:
            found = [RemoteTool(**msgspec.structs.asdict(one)) for one in known[-1].tools]
        else:
            found = await self._list(label, exchange)
        found = [one for one in found if _is_in(one, tool.allowed_tools)]
        if not known:
            self.listed.append((label, found))
        for one in found:
            name = function_name(one.name)
            if name in taken:
                name = function_name(f"{label}_{one.name}")
            if name in taken:
                raise InvalidRequestError(
                    f"Another tool is called {quoted(name)}; leave one out by allowed_tools.",
                    param="allowed_tools",
                )
            taken.add(name)
            self.by_name[name] = RemoteFunction(label, one.name, _needs_approval(one, tool))
            about = [text for text in (tool.server_description, one.description) if text]
            self.functions.append(
                FunctionTool(
                    name=name,
                    description="\n".join(about) or None,
                    parameters=one.input_schema,
                )
            )

    async def _list(self, label: str, exchange: Exchange) -> list[RemoteTool]:
        try:
            return await self._servers.list_tools(exchange)
        except CallFailed as error:
            raise FailedDependency(
                f"The MCP server {quoted(label)} did not list its tools. {error.message}",
                param="server_url",
            ) from None

    def approve(self, items: Sequence[Item], own: Sequence[Item]) -> None:
        """Note the calls that ``own`` items allow. Raises ``InvalidRequestError``."""
        requests = {item.id: item for item in items if isinstance(item, McpApprovalRequestItem)}
        made = {item.approval_request_id for item in items if isinstance(item, McpCallItem)}
        for index, item in enumerate(own):
            if not isinstance(item, McpApprovalResponseItem):
                continue
            path = f"input[{index}].approval_request_id"
            request = requests.get(item.approval_request_id)
            if request is None:
                raise InvalidRequestError("There is no such request before it.", param=path)
            if not item.approve or request.id in made:
                continue
            label, name = request.server_label, request.name
            function = RemoteFunction(label, name, needs_approval=True)
            if function not in self.by_name.values() and not self.names(label, name):
                raise InvalidRequestError(
                    f"Among tools there is no {quoted(name)} of a server {quoted(label)}.",
                    param=path,
                )
            made.add(request.id)
            self.approved.append(Approved(function, request))


async def find(
    servers: McpServers,
    tenant_id: UUID,
    tools: Sequence[Tool],
    items: Sequence[Item],
    own: Sequence[Item],
    max_calls: int | None,
) -> RemoteTools:
    """The tools of all servers that a request names. Raises ``ApiError``, ``TenantsError``.

    items: all that the response goes on with, the ``own`` of the request last.
    """
    most = servers.max_calls if max_calls is None else min(max_calls, servers.max_calls)
    remote = RemoteTools(servers, most)
    taken = {tool.name for tool in tools if isinstance(tool, FunctionTool)}
    for index, tool in enumerate(tools):
        if isinstance(tool, McpTool):
            try:
                await remote.add(tool, tenant_id, items, taken)
            except (InvalidRequestError, FailedDependency) as exc:
                exc.param = f"tools[{index}].{exc.param}"
                raise
    remote.approve(items, own)
    return remote


def _url(tool: McpTool) -> str:
    for name in ("connector_id", "tunnel_id", "defer_loading"):
        if getattr(tool, name):
            raise UnsupportedParameter("Not offered by this server.", param=name)
    if tool.server_url is None:
        raise InvalidRequestError("Missing required parameter.", param="server_url")
    return tool.server_url


def _headers(tool: McpTool) -> Mapping[str, str]:
    headers = dict(tool.headers or {})
    if len(headers) > MAX_HEADERS:
        raise InvalidRequestError(f"At most {MAX_HEADERS} headers.", param="headers")
    for name, value in headers.items():
        is_token = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
        if not is_token or name.lower() in _OWN_HEADERS or name.lower().startswith("mcp-"):
            raise InvalidRequestError(f"{quoted(name)} cannot be set.", param="headers")
        if not (value.isascii() and value.isprintable()):
            raise InvalidRequestError(f"{quoted(name)} has no printable value.", param="headers")
    if tool.authorization is not None:
        if any(name.lower() == "authorization" for name in headers):
            raise InvalidRequestError("headers has one already.", param="authorization")
        if not (tool.authorization.isascii() and tool.authorization.isprintable()):
            raise InvalidRequestError("Must be printable ASCII.", param="authorization")
        headers["authorization"] = f"Bearer {tool.authorization}"
    return headers


def _is_in(tool: RemoteTool, wanted: Sequence[str] | McpFilter | None) -> bool:
    if wanted is None:
        return True
    if not isinstance(wanted, McpFilter):
        return tool.name in wanted
    if wanted.tool_names is not None and tool.name not in wanted.tool_names:
        return False
    only_reads = (tool.annotations or {}).get("readOnlyHint", False)
    return wanted.read_only is None or wanted.read_only == bool(only_reads)


def _needs_approval(tool: RemoteTool, asked: McpTool) -> bool:
    wanted = asked.require_approval
    if isinstance(wanted, McpApproval):
        if wanted.always is not None and _is_in(tool, wanted.always):
            return True
        return wanted.never is None or not _is_in(tool, wanted.never)
    return wanted != "never"


def _failed(text: str) -> dict[str, Any]:
    return {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}
