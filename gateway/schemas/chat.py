"""Chat Completions: the request as clients send it.

All fields of OpenAI's specification are declared, so that an unknown name is refused as unknown and
a known one that this server cannot act on is refused as unsupported (``admission.unsupported``
lists those with the values at which they mean nothing). ``answers.chat`` writes the answers.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gateway.schemas.common import Typed
from gateway.schemas.sampling import SamplingFields


class TextPart(Typed, frozen=True, tag="text"):
    text: str
    cache_control: Any = None
    """Changes nothing: every prefix of a tenant's prompts is cached anyway."""


Detail = Literal["auto", "low", "high", "original"]
"""How large a picture is shown to the model: ``original`` is as ``high``."""


class ImageUrl(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: str
    """``data:image/png;base64,...``, or ``https://...`` where the server fetches it."""
    detail: Detail | None = None


class ImagePart(Typed, frozen=True, kw_only=True, tag="image_url"):
    image_url: ImageUrl
    cache_control: Any = None
    """As in ``TextPart``."""


class Picture(ImagePart, frozen=True, kw_only=True):
    """A picture that came by another API. No client can send this kind."""

    place: str
    """The path of the part, as its client calls it."""
    field: str
    """Of that part, what holds the picture; empty if ``place`` is all that can be named."""
    kind: str
    """What its client calls such a part."""
    file_id: str | None = None
    """The file that it is in; ``image_url.url`` is empty then."""


class AudioPart(msgspec.Struct, frozen=True, tag_field="type", tag="input_audio"):
    """Declared to be refused by name: no model served here hears."""

    input_audio: msgspec.Raw


class FilePart(msgspec.Struct, frozen=True, tag_field="type", tag="file"):
    """Declared to be refused by name: the model reads no documents."""

    file: msgspec.Raw


class RefusalPart(msgspec.Struct, frozen=True, tag_field="type", tag="refusal"):
    """An assistant's earlier refusal, sent back as history."""

    refusal: str


ContentPart = TextPart | ImagePart | AudioPart | FilePart | RefusalPart
Content = str | list[ContentPart]


class FunctionCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str
    """A JSON document, as text."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"
    index: int | None = None
    """Some clients send a streamed call back as they received it."""


class _Message(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="role", forbid_unknown_fields=True
):
    content: Content
    name: str | None = None


class SystemMessage(_Message, frozen=True, tag="system"):
    pass


class DeveloperMessage(_Message, frozen=True, tag="developer"):
    pass


class UserMessage(_Message, frozen=True, tag="user"):
    pass


class AssistantMessage(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="assistant"
):
    """History. Other names are let pass: clients send our own answers back as they came."""

    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    """For templates that show earlier reasoning; the others leave it out."""
    audio: None = None
    function_call: None = None


class ToolMessage(_Message, frozen=True, kw_only=True, tag="tool"):
    """Its ``name`` is the function's, for templates that ask for it."""

    tool_call_id: str


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class FunctionDefinition(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema of the arguments."""
    strict: bool | None = None


class FunctionTool(Typed, frozen=True, kw_only=True, tag="function", omit_defaults=True):
    function: FunctionDefinition
    cache_control: Any = None
    """As in ``TextPart``."""


class CustomTool(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="custom"):
    """Declared to be refused by name: no chat template served here shows one."""

    custom: msgspec.Raw


Tool = FunctionTool | CustomTool


class FunctionName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str


class NamedFunction(Typed, frozen=True, tag="function"):
    """Names a function; ``allowed_tools`` names each of its tools in this form."""

    function: FunctionName


class NamedCustomTool(msgspec.Struct, frozen=True, tag_field="type", tag="custom"):
    """Declared to be refused by name, as ``CustomTool``."""

    custom: msgspec.Raw


class AllowedTools(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: list[NamedFunction | NamedCustomTool]


class AllowedToolsChoice(Typed, frozen=True, tag="allowed_tools"):
    allowed_tools: AllowedTools


ToolChoice = (
    Literal["none", "auto", "required"] | NamedFunction | NamedCustomTool | AllowedToolsChoice
)

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast"]


class ChatFields(SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a chat says and how it samples: the same over HTTP and over the WebSocket."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    """The older name of ``max_completion_tokens``; only one of them may be set."""
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    """The newer name of ``user``, which counts if both are set."""
    prompt_cache_key: str | None = None
    """Named in the log line: here every prefix of a tenant's prompts is cached without a hint."""
    service_tier: ServiceTier | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables for the chat template, out of those that ``models.template_kwargs`` allows."""
    add_generation_prompt: bool | None = None
    """Whether the prompt ends with the beginning of an answer; by default it does, unless
    ``continue_final_message``."""
    continue_final_message: bool | None = None
    """Whether the answer goes on with the last message, which is the assistant's."""
    include_reasoning: bool | None = None
    """Whether the answer shows the model's reasoning; it does by default."""


class Prediction(Typed, frozen=True, tag="content"):
    content: Content


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ChatCompletionRequest(ChatFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/chat/completions``."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    resumable: bool | None = None
    """Ours: the stream outlives its connection; see ``routes.streams``."""
    n: int | None = None

    # Known, and refused by name unless they hold a value at which they mean nothing.
    audio: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: Any = None
    moderation: Any = None
    web_search_options: Any = None

    prediction: Prediction | None = None
    """What the answer is expected to be, from which tokens are drafted."""

    # Hints, which are taken and change nothing (``admission.unsupported.HINTS``).
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    store: bool | None = None
