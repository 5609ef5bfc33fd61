"""All routes: what each needs and takes, and the handler that answers it.

The router, authorization, the refusals before a body is read, idempotency, both API documents and
the list of routes in the gateway's README follow from this table.
"""

from __future__ import annotations

from functools import cache

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.oidc.sign_in import PAGES
from gateway.routes import (
    admin_adapters,
    admin_fleet,
    admin_live,
    admin_mcp,
    admin_tenants,
    admin_usage,
    admin_webhooks,
    batches,
    chat,
    completions,
    conversations,
    embeddings,
    files,
    health,
    messages,
    models,
    pages,
    responses,
    schemas,
    sign_in,
    sockets,
    stored_chats,
    streams,
    tickets,
    tokenize,
)
from gateway.schemas import answers as bodies
from gateway.schemas import asyncapi, openapi, response_answers, responses_ws, ws
from gateway.schemas.admin import (
    AdapterDeleted,
    AdapterObject,
    AllowMcpServer,
    CreateKey,
    CreateTenant,
    CreateWebhook,
    EngineState,
    KeyObject,
    LimitsObject,
    ListObject,
    LoadAdapter,
    McpServerDeleted,
    McpServerObject,
    NamedProject,
    ProjectObject,
    RotateKey,
    TenantDeleted,
    TenantObject,
    UpdateTenant,
    UpdateWebhook,
    WebhookObject,
    WebhookTest,
)
from gateway.schemas.batches import BatchList, BatchObject, CreateBatch
from gateway.schemas.chat import ChatCompletionRequest
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.conversations import (
    AddItems,
    ConversationList,
    ConversationObject,
    CreateConversation,
    DeletedConversation,
    UpdateConversation,
)
from gateway.schemas.embeddings import (
    EmbeddingAnswer,
    EmbeddingRequest,
    RerankAnswer,
    RerankRequest,
    ScoreAnswer,
    ScoreRequest,
)
from gateway.schemas.files import DeletedFile, FileList, FileObject
from gateway.schemas.messages import (
    MessageAnswer,
    MessageEvent,
    MessagesRequest,
    MessageTokens,
    TokenCountRequest,
)
from gateway.schemas.models import Model, ModelList
from gateway.schemas.operation import SOCKET, Operation, Parameter
from gateway.schemas.responses import (
    CompactionAnswer,
    DeletedResponse,
    InputItemList,
    InputTokens,
    ResponseFields,
    ResponseRequest,
)
from gateway.schemas.schema_check import SchemaCheckRequest, SchemaReport
from gateway.schemas.sign_in import KeySignIn, SignInState
from gateway.schemas.stored_chats import DeletedChat, StoredList, UpdateChat
from gateway.schemas.tickets import WsTicket
from gateway.schemas.tokenize import (
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
)
from gateway.services import Services
from tenants.limits import Limits
from tenants.types import USAGE_GROUPS, USAGE_STATUSES


def _text(name: str, description: str) -> Parameter:
    return Parameter(name, {"type": "string"}, description)


def _integer(name: str, description: str, **schema: int) -> Parameter:
    return Parameter(name, {"type": "integer", **schema}, description)


def _one_of(name: str, description: str, *values: str) -> Parameter:
    return Parameter(name, {"enum": list(values), "default": values[0]}, description)


_FROM = _integer("from", "Number of whole events already read.", minimum=0, default=0)
_EVENTS = (
    Parameter(
        "stream",
        {"type": "boolean", "default": False},
        "Return the events of a background or resumable response instead.",
    ),
    _integer(
        "starting_after", "Sequence number of the last event read; only with stream.", minimum=0
    ),
)
_ITEMS = (
    _integer("limit", "Items per page.", minimum=1, maximum=100, default=20),
    _one_of("order", "Order by position.", "desc", "asc"),
    _text("after", "The id of the item before the page."),
)
_FILES = (
    _text("purpose", "Only files of this purpose."),
    _integer("limit", "Files per page.", minimum=1, maximum=10_000, default=10_000),
    _one_of("order", "Order by creation.", "desc", "asc"),
    _text("after", "The id of the file before the page."),
)
_BATCHES = (
    _integer("limit", "Batches per page.", minimum=1, maximum=100, default=20),
    _text("after", "The id of the batch before the page."),
)
_PAGE = (
    _text("search", "Keep rows that contain this text, in any case."),
    _text("after", "What the page before gave as next."),
    _integer("limit", "Rows per page.", minimum=1),
)
_SPAN = (
    _text("tenant_id", "Only this tenant's."),
    _integer("start_time", "Unix seconds; 30 days ago by default.", minimum=1),
    _integer("end_time", "Unix seconds; now by default.", minimum=1),
)
_SINCE = _integer("start_time", "Unix seconds; 7 days ago by default, at most 30.", minimum=1)
_SUMS = (
    _one_of("bucket_width", "How long a sum's time is.", "1h", "1d", "all"),
    _text("group_by", f"A list of {', '.join(USAGE_GROUPS)}; all by default."),
    _one_of("order", "Those with the most tokens first, without pages.", "tokens"),
)
_ROWS = (
    _text("key_id", "Only this key's."),
    _text("model", "Only this model's."),
    Parameter("status", {"enum": list(USAGE_STATUSES)}, "Only those that ended so."),
    _text("end_user", "Only this end user's."),
    _text("endpoint", "Only those that came by this path."),
    _one_of("format", "csv and jsonl export all rows.", "json", "csv", "jsonl"),
)

_CONVERSATIONS = (
    _text("search", "Only those with this text in the title or a message; of the last 2000."),
    _integer("limit", "Conversations per page.", minimum=1, maximum=100, default=20),
    _text("after", "The id of the conversation before the page."),
)
_STORED = (
    _ITEMS[0],
    _one_of("order", "Order by time.", "asc", "desc"),
    _text("after", "The id of the last one before the page."),
)
_CHATS = (
    *_STORED,
    _text("model", "Only this model's."),
    _text("metadata[key]", "Only those with this value of the key, for any keys."),
)

_SIGN_IN_PAGE = _one_of("page", "The page that is signed in on.", *PAGES)
_ADMIN = "/admin/v1"
_CHAT = "/v1/chat/completions/{completion_id}"
_CONVERSATION = "/v1/conversations/{conversation_id}"
_FILE = "/v1/files/{file_id}"
_TENANT = f"{_ADMIN}/tenants/{{tenant_id}}"
_WEBHOOK = f"{_ADMIN}/webhooks/{{webhook_id}}"


async def _openapi(services: Services, request: Request) -> Response:
    return Response(_documents()[0], media_type="application/json")


async def _asyncapi(services: Services, request: Request) -> Response:
    return Response(_documents()[1], media_type="application/json")


@cache
def _documents() -> tuple[bytes, bytes]:
    """They describe the code and nothing of its settings, so once per process is enough."""
    documents = openapi.document(OPERATIONS), asyncapi.document(OPERATIONS)
    return msgspec.json.encode(documents[0]), msgspec.json.encode(documents[1])


# fmt: off
OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "POST", "/v1/chat/completions", "Answer a chat", chat.create,
        body=ChatCompletionRequest, answer=bodies.ChatCompletionAnswer,
        events=bodies.ChatCompletionChunk, reserves=True, idempotent=True),
    Operation(
        "GET", "/v1/chat/completions", "The stored chats", stored_chats.list_all,
        answer=StoredList, query=_CHATS),
    Operation(
        "GET", _CHAT, "A stored chat", stored_chats.retrieve, answer=bodies.ChatCompletionAnswer),
    Operation(
        "POST", _CHAT, "Replace a stored chat's metadata", stored_chats.update, body=UpdateChat,
        answer=bodies.ChatCompletionAnswer),
    Operation(
        "DELETE", _CHAT, "Delete a stored chat", stored_chats.delete, answer=DeletedChat),
    Operation(
        "GET", f"{_CHAT}/messages", "What was asked in a stored chat", stored_chats.messages,
        answer=StoredList, query=_STORED),
    Operation(
        "POST", "/v1/completions", "Continue a text", completions.create,
        body=CompletionRequest, answer=bodies.CompletionAnswer, events=bodies.CompletionAnswer,
        reserves=True, idempotent=True),
    Operation(
        "POST", "/v1/embeddings", "The vectors of texts", embeddings.embed,
        body=EmbeddingRequest, answer=EmbeddingAnswer, reserves=True, idempotent=True),
    Operation(
        "POST", "/v1/rerank", "The documents that answer a query best, as in Jina's API",
        embeddings.rerank, body=RerankRequest, answer=RerankAnswer, reserves=True, idempotent=True),
    Operation(
        "POST", "/v2/rerank", "The same, for Cohere's clients", embeddings.rerank,
        body=RerankRequest, answer=RerankAnswer, reserves=True, idempotent=True),
    Operation(
        "POST", "/v1/score", "How well texts go together", embeddings.score,
        body=ScoreRequest, answer=ScoreAnswer, reserves=True, idempotent=True),
    Operation(
        "POST", "/v1/responses", "Create a response", responses.create, "responses",
        body=ResponseRequest, answer=response_answers.ResponseAnswer,
        events=response_answers.ResponseEvent, reserves=True, idempotent=True),
    Operation(
        "POST", "/v1/responses/input_tokens", "Count the tokens of a response's input",
        responses.count, "responses", body=ResponseFields, answer=InputTokens),
    Operation(
        "POST", "/v1/responses/compact", "Sum up a response's input into an item",
        responses.compact, "responses", body=ResponseFields, answer=CompactionAnswer,
        reserves=True, idempotent=True),
    Operation(
        "GET", "/v1/responses/{response_id}", "A response, or the rest of its events",
        responses.retrieve, "responses", answer=response_answers.ResponseAnswer,
        events=response_answers.ResponseEvent, query=_EVENTS),
    Operation(
        "DELETE", "/v1/responses/{response_id}", "Delete a response", responses.delete, "responses",
        answer=DeletedResponse),
    Operation(
        "POST", "/v1/responses/{response_id}/cancel", "Cancel a running response", responses.cancel,
        "responses", answer=response_answers.ResponseAnswer),
    Operation(
        "GET", "/v1/responses/{response_id}/input_items", "The input items of a response",
        responses.input_items, "responses", answer=InputItemList, query=_ITEMS),
    Operation(
        SOCKET, "/v1/responses", "Responses as messages", sockets.open_responses, "responses",
        body=ws.Auth | responses_ws.ClientMessage, events=responses_ws.ServerMessage),
    Operation(
        SOCKET, "/v1/chat", "Chats of browsers, several at once", sockets.open_chat,
        body=ws.ClientMessage, events=ws.ServerMessage),
    Operation(
        "POST", "/v1/conversations", "Create a conversation", conversations.create, "responses",
        body=CreateConversation, answer=ConversationObject, idempotent=True),
    Operation(
        "GET", "/v1/conversations", "The conversations of a key, last used first",
        conversations.list_all, "responses", answer=ConversationList, query=_CONVERSATIONS),
    Operation(
        "GET", _CONVERSATION, "A conversation", conversations.retrieve, "responses",
        answer=ConversationObject),
    Operation(
        "POST", _CONVERSATION, "Replace a conversation's metadata", conversations.update,
        "responses", body=UpdateConversation, answer=ConversationObject),
    Operation(
        "DELETE", _CONVERSATION, "Delete a conversation with its items", conversations.delete,
        "responses", answer=DeletedConversation),
    Operation(
        "POST", f"{_CONVERSATION}/items", "Add items to a conversation", conversations.add_items,
        "responses", body=AddItems, answer=InputItemList, idempotent=True),
    Operation(
        "GET", f"{_CONVERSATION}/items", "The items of a conversation", conversations.list_items,
        "responses", answer=InputItemList, query=_ITEMS),
    Operation(
        "GET", f"{_CONVERSATION}/items/{{item_id}}", "An item of a conversation",
        conversations.retrieve_item, "responses"),
    Operation(
        "DELETE", f"{_CONVERSATION}/items/{{item_id}}", "Delete an item of a conversation",
        conversations.delete_item, "responses", answer=ConversationObject),
    Operation(
        "POST", "/v1/messages", "Answer a chat, in Anthropic's words", messages.create,
        body=MessagesRequest, answer=MessageAnswer, events=MessageEvent, reserves=True,
        idempotent=True),
    Operation(
        "POST", "/v1/messages/count_tokens", "Count the tokens of a message's prompt",
        messages.count_tokens, body=TokenCountRequest, answer=MessageTokens),
    Operation(
        "POST", "/v1/files", "Upload a file", files.upload, answer=FileObject, uploads=True),
    Operation("GET", "/v1/files", "All files", files.list_all, answer=FileList, query=_FILES),
    Operation("GET", _FILE, "A file", files.retrieve, answer=FileObject),
    Operation("GET", f"{_FILE}/content", "The bytes of a file", files.content),
    Operation(
        "DELETE", _FILE, "Delete a file with its bytes", files.delete, answer=DeletedFile),
    Operation(
        "POST", "/v1/batches", "Run the requests of a file", batches.create, body=CreateBatch,
        answer=BatchObject, idempotent=True),
    Operation(
        "GET", "/v1/batches", "All batches", batches.list_all, answer=BatchList, query=_BATCHES),
    Operation(
        "GET", "/v1/batches/{batch_id}", "A batch", batches.retrieve, answer=BatchObject),
    Operation(
        "POST", "/v1/batches/{batch_id}/cancel", "Cancel a batch", batches.cancel,
        answer=BatchObject),
    Operation(
        "POST", "/v1/ws-tickets", "A ticket that opens one WebSocket within 30 s, at any worker",
        tickets.create, answer=WsTicket),
    Operation(
        "GET", "/v1/streams/{stream_id}", "Continue reading a resumable stream, at any worker",
        streams.resume, events=bodies.ChatCompletionChunk, query=(_FROM,)),
    Operation(
        "DELETE", "/v1/streams/{stream_id}", "Stop a resumable stream", streams.stop, status=204),
    Operation("GET", "/v1/models", "The models a key may use", models.list_all, answer=ModelList),
    Operation("GET", "/v1/models/{model:path}", "One model", models.retrieve, answer=Model),
    Operation(
        "POST", "/v1/tokenize", "The tokens of a prompt", tokenize.tokenize, body=TokenizeRequest,
        answer=TokenizeAnswer),
    Operation(
        "POST", "/v1/detokenize", "The text of tokens", tokenize.detokenize, body=DetokenizeRequest,
        answer=DetokenizeAnswer),
    Operation(
        "POST", "/v1/schemas/check", "What is enforced of a JSON schema", schemas.check,
        body=SchemaCheckRequest, answer=SchemaReport),
    Operation(
        "POST", f"{_ADMIN}/tenants", "Create a tenant", admin_tenants.create_tenant, "admin",
        body=CreateTenant, answer=TenantObject, status=201),
    Operation(
        "GET", f"{_ADMIN}/tenants", "All tenants", admin_tenants.list_tenants, "billing",
        answer=ListObject, query=_PAGE),
    Operation("GET", _TENANT, "A tenant", admin_tenants.get_tenant, "billing", answer=TenantObject),
    Operation(
        "PATCH", _TENANT, "Rename, weigh, disable or enable a tenant", admin_tenants.update_tenant,
        "admin", body=UpdateTenant, answer=TenantObject),
    Operation(
        "DELETE", _TENANT, "Delete a tenant with all that it has stored",
        admin_tenants.delete_tenant, "owner", answer=TenantDeleted),
    Operation(
        "GET", f"{_TENANT}/limits", "The limits of a tenant, its projects and its keys",
        admin_tenants.list_limits, "billing", answer=ListObject, query=_PAGE),
    Operation(
        "PUT", f"{_TENANT}/limits", "Replace a tenant's limits", admin_tenants.put_tenant_limits,
        "admin", body=Limits, answer=LimitsObject),
    Operation(
        "POST", f"{_TENANT}/projects", "Create a project", admin_tenants.create_project, "admin",
        body=NamedProject, answer=ProjectObject, status=201),
    Operation(
        "GET", f"{_TENANT}/projects", "A tenant's projects", admin_tenants.list_projects, "billing",
        answer=ListObject, query=_PAGE),
    Operation(
        "PATCH", f"{_TENANT}/projects/{{project_id}}", "Rename a project",
        admin_tenants.rename_project, "admin", body=NamedProject, answer=ProjectObject),
    Operation(
        "PUT", f"{_TENANT}/projects/{{project_id}}/limits", "Replace a project's limits",
        admin_tenants.put_project_limits, "admin", body=Limits, answer=LimitsObject),
    Operation(
        "POST", f"{_TENANT}/keys", "Create a key; only this answer shows it",
        admin_tenants.create_key, "admin", body=CreateKey, answer=KeyObject, status=201),
    Operation(
        "GET", f"{_TENANT}/keys", "A tenant's keys", admin_tenants.list_keys, "billing",
        answer=ListObject, query=_PAGE),
    Operation(
        "GET", f"{_TENANT}/keys/{{key_id}}", "A key", admin_tenants.get_key, "billing",
        answer=KeyObject),
    Operation(
        "DELETE", f"{_TENANT}/keys/{{key_id}}", "Revoke a key", admin_tenants.revoke_key, "admin",
        answer=KeyObject),
    Operation(
        "POST", f"{_TENANT}/keys/{{key_id}}/revoke", "Revoke a key", admin_tenants.revoke_key,
        "admin", answer=KeyObject),
    Operation(
        "POST", f"{_TENANT}/keys/{{key_id}}/rotate", "Replace a key; the old one works for a while",
        admin_tenants.rotate_key, "admin", body=RotateKey, answer=KeyObject, status=201),
    Operation(
        "PUT", f"{_TENANT}/keys/{{key_id}}/limits", "Replace a key's limits",
        admin_tenants.put_key_limits, "admin", body=Limits, answer=LimitsObject),
    Operation(
        "POST", f"{_TENANT}/adapters", "Load an adapter (LoRA)", admin_adapters.load, "admin",
        body=LoadAdapter, answer=AdapterObject, status=201),
    Operation(
        "GET", f"{_TENANT}/adapters", "A tenant's adapters", admin_adapters.list_all, "view",
        answer=ListObject, query=_PAGE),
    Operation(
        "DELETE", f"{_TENANT}/adapters/{{adapter:path}}", "Unload an adapter",
        admin_adapters.unload, "admin", answer=AdapterDeleted),
    Operation(
        "POST", f"{_TENANT}/mcp_servers", "Allow an MCP server", admin_mcp.allow, "admin",
        body=AllowMcpServer, answer=McpServerObject, status=201),
    Operation(
        "GET", f"{_TENANT}/mcp_servers", "The MCP servers that a tenant may use",
        admin_mcp.list_all, "view", answer=ListObject, query=_PAGE),
    Operation(
        "DELETE", f"{_TENANT}/mcp_servers/{{server_id}}", "Allow an MCP server no longer",
        admin_mcp.deny, "admin", answer=McpServerDeleted),
    Operation(
        "GET", f"{_ADMIN}/usage", "Sums of usage", admin_usage.usage, "usage", answer=ListObject,
        query=(*_SPAN, *_SUMS, *_PAGE)),
    Operation(
        "GET", f"{_ADMIN}/usage/requests", "The ledger's single requests, the newest first",
        admin_usage.requests, "usage", answer=ListObject, query=(*_SPAN, *_ROWS, *_PAGE[1:])),
    Operation(
        "GET", f"{_ADMIN}/budgets", "What is used of limits, the greatest shares first",
        admin_usage.budgets, "billing", answer=ListObject, query=(_SPAN[0], _PAGE[2])),
    Operation(
        "GET", f"{_ADMIN}/refusals", "Who was refused and why, those most often first",
        admin_usage.refusals, "view", answer=ListObject, query=(_SPAN[0], _SINCE, _PAGE[2])),
    Operation(
        "GET", f"{_ADMIN}/audit_log", "Who changed what", admin_usage.audit_log, "view",
        answer=ListObject, query=(_SPAN[0], *_PAGE)),
    Operation(
        "GET", f"{_ADMIN}/streams", "Requests that run", admin_live.list_streams, "view",
        answer=ListObject, query=(_SPAN[0], *_PAGE)),
    Operation(
        "DELETE", f"{_ADMIN}/streams/{{stream_id}}", "End a request", admin_live.kill_stream,
        "admin", status=204),
    Operation(
        "GET", f"{_ADMIN}/engine", "The engine, and who uses it", admin_live.state, "view",
        answer=EngineState),
    Operation(
        "GET", f"{_ADMIN}/fleet", "The engines of all hosts", admin_fleet.show, "view",
        answer=ListObject, query=_PAGE),
    Operation(
        "POST", f"{_ADMIN}/fleet/{{engine_id}}/drain",
        "Send an engine no more requests; its running ones move to others, or end",
        admin_fleet.drain, "admin", status=204),
    Operation(
        "POST", f"{_ADMIN}/fleet/{{engine_id}}/undrain", "Send a drained engine requests again",
        admin_fleet.undrain, "admin", status=204),
    Operation(
        "POST", f"{_ADMIN}/webhooks", "Create a webhook", admin_webhooks.create, "admin",
        body=CreateWebhook, answer=WebhookObject, status=201),
    Operation(
        "GET", f"{_ADMIN}/webhooks", "All webhooks", admin_webhooks.list_all, "view",
        answer=ListObject, query=(_SPAN[0], *_PAGE)),
    Operation(
        "PATCH", _WEBHOOK, "Change, disable or enable a webhook", admin_webhooks.update, "admin",
        body=UpdateWebhook, answer=WebhookObject),
    Operation("DELETE", _WEBHOOK, "Delete a webhook", admin_webhooks.delete, "admin", status=204),
    Operation(
        "POST", f"{_WEBHOOK}/rotate", "Replace a webhook's secret; the old one signs for a while",
        admin_webhooks.rotate, "admin", body=RotateKey, answer=WebhookObject),
    Operation(
        "POST", f"{_WEBHOOK}/test", "Send a webhook an event", admin_webhooks.test, "admin",
        answer=WebhookTest, status=202),
    Operation(
        "GET", f"{_WEBHOOK}/deliveries", "What a webhook was sent in the last week",
        admin_webhooks.deliveries, "view", answer=ListObject, query=_PAGE[1:]),
    Operation(
        "GET", "/auth/sign-in", "Sign in at the provider", sign_in.begin, None,
        query=(_SIGN_IN_PAGE,), status=303),
    Operation(
        "GET", "/auth/callback", "Where the provider sends those who have", sign_in.callback, None,
        query=(_text("code", "Stands for the sign-in."), _text("state", "What we have sent.")),
        status=303),
    Operation("POST", "/auth/sign-out", "End a sign-in", sign_in.sign_out, None, status=204),
    Operation(
        "GET", "/auth/session", "Who has signed in", sign_in.state, None, query=(_SIGN_IN_PAGE,),
        answer=SignInState),
    Operation(
        "POST", "/auth/session", "Sign in on a page with an API key", sign_in.with_key, None,
        body=KeySignIn, query=(_SIGN_IN_PAGE,), answer=SignInState),
    Operation("GET", "/openapi.json", "This description of the HTTP API", _openapi, None),
    Operation("GET", "/asyncapi.json", "The messages of the WebSockets", _asyncapi, None),
    Operation("GET", "/livez", "Whether the process is alive", health.livez, None),
    Operation("GET", "/readyz", "Whether requests are served", health.readyz, None),
    Operation("GET", "/metrics", "Metrics for Prometheus", health.metrics, "view"),
    *pages.operations(),
)
# fmt: on
