"""Requests as well-known clients send them, byte for byte in their fields, headers and order.

``{call_id}`` and ``{arguments}`` stand for what the answer before has said.
"""

from __future__ import annotations

from typing import Any

DRAFT_07 = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"city": {"type": "string", "description": "The city"}},
    "required": ["city"],
    "additionalProperties": False,
}

# Vercel's AI SDK through createOpenAICompatible: streamText with a tool, then its second step.
AI_SDK_HEADERS = {
    "user-agent": "ai/5.0.0 ai-sdk/openai-compatible/1.0.0 runtime/node.js/22",
    "content-type": "application/json",
}
AI_SDK_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather in a city.",
            "parameters": DRAFT_07,
        },
    }
]
AI_SDK_FIRST: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 200,
    "temperature": 0,
    "messages": [{"role": "user", "content": "What is the weather in Oslo?"}],
    "tools": AI_SDK_TOOLS,
    "tool_choice": "auto",
    "stream": True,
    "stream_options": {"include_usage": True},
}
AI_SDK_SECOND: dict[str, Any] = {
    **AI_SDK_FIRST,
    "messages": [
        *AI_SDK_FIRST["messages"],
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "{call_id}",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": "{arguments}"},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "{call_id}", "content": '{"temperature_c":7}'},
    ],
}
# generateObject: with supportsStructuredOutputs, and without.
AI_SDK_OBJECT: dict[str, Any] = {
    "model": "tiny",
    "temperature": 0,
    "max_tokens": 200,
    "response_format": {
        "type": "json_schema",
        "json_schema": {"schema": DRAFT_07, "name": "response", "strict": True},
    },
    "messages": [{"role": "user", "content": "Which city?"}],
}
AI_SDK_LOOSE_OBJECT: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 200,
    "response_format": {"type": "json_object"},
    "messages": [
        {"role": "system", "content": "JSON schema:\n{...}\nYou MUST answer with a JSON object."},
        {"role": "user", "content": "Which city?"},
    ],
}

# Its default provider speaks Responses, and does not say whether tools are strict. Zod writes the
# bounds of safe integers beside each integer.
AI_SDK_6_SCHEMA: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "The city"},
        "days": {
            "anyOf": [
                {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
                {"type": "null"},
            ]
        },
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
AI_SDK_6_FIRST: dict[str, Any] = {
    "model": "tiny",
    "input": [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "What is the weather in Oslo?"}],
        },
    ],
    "parallel_tool_calls": False,
    "tools": [
        {
            "type": "function",
            "name": "get_weather",
            "description": "Get the weather in a city.",
            "parameters": AI_SDK_6_SCHEMA,
        }
    ],
    "tool_choice": "auto",
    "stream": True,
}
AI_SDK_6_SECOND: dict[str, Any] = {
    **AI_SDK_6_FIRST,
    "input": [
        *AI_SDK_6_FIRST["input"],
        {
            "type": "function_call",
            "call_id": "{call_id}",
            "name": "get_weather",
            "arguments": "{arguments}",
        },
        {
            "type": "function_call_output",
            "call_id": "{call_id}",
            "output": '{"temperature_c":7}',
        },
    ],
}
AI_SDK_6_OBJECT: dict[str, Any] = {
    "model": "tiny",
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "Which city?"}]}],
    "parallel_tool_calls": False,
    "max_output_tokens": 200,
    "text": {
        "format": {
            "type": "json_schema",
            "strict": True,
            "name": "response",
            "schema": AI_SDK_6_SCHEMA,
        }
    },
}

# Open WebUI: the models, the answer, then the follow-ups, the title and the tags of the chat.
OPEN_WEBUI_HEADERS = {
    "content-type": "application/json",
    "x-openwebui-user-name": "Ada",
    "x-openwebui-user-id": "4b1d",
    "x-openwebui-user-email": "ada@example.org",
    "x-openwebui-user-role": "user",
    "x-openwebui-chat-id": "c0ffee",
}
OPEN_WEBUI_CHAT: dict[str, Any] = {
    "stream": True,
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "You are helpful."},
        {"role": "user", "content": [{"type": "text", "text": "Hello! What can you do?"}]},
    ],
    "stream_options": {"include_usage": True},
}
OPEN_WEBUI_TASKS: list[dict[str, Any]] = [
    {
        "model": "tiny",
        "messages": [{"role": "user", "content": f"### Task:\n{task}\nReply with JSON."}],
        "stream": False,
        **limit,
    }
    for task, limit in (
        ("Suggest 3-5 follow-up questions", {}),
        ("Generate a concise title", {"max_completion_tokens": 1000}),
        ("Generate 1-3 broad tags", {"max_tokens": 1000}),
    )
]

# LangChain's ChatOpenAI(base_url=...).with_structured_output(method="json_schema").
LANGCHAIN: dict[str, Any] = {
    "messages": [{"content": "Which city?", "role": "user"}],
    "model": "tiny",
    "n": 1,
    "stream": False,
    "temperature": 0.0,
    "max_completion_tokens": 200,
    "parallel_tool_calls": False,
    "tool_choice": {"type": "function", "function": {"name": "City"}},
    "tools": [
        {
            "type": "function",
            "function": {"name": "City", "description": "", "parameters": {**DRAFT_07}},
        }
    ],
}
