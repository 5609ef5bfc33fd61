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

# Claude Code: a billing header and a long prompt in system blocks, many tools, thinking. It asks
# any model for 32,000 tokens. Others of that form stand in for its own prompt and tools.
CLAUDE_CODE_HEADERS = {
    "user-agent": "claude-cli/2.1.40 (external, cli)",
    "x-app": "cli",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,"
    "context-management-2025-06-27,prompt-caching-scope-2026-01-05",
    "anthropic-dangerous-direct-browser-access": "true",
    "x-stainless-lang": "js",
    "x-stainless-package-version": "0.74.0",
    "x-stainless-runtime": "node",
    "content-type": "application/json",
}
_EPHEMERAL = {"type": "ephemeral"}
CLAUDE_CODE_TOOLS: list[dict[str, Any]] = [
    {
        "name": name,
        "description": f"{name}: {'how to use it, and when not to. ' * 4}",
        "input_schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "city": {"description": "What it is about", "type": "string"},
                "limit": {"description": "How much", "type": "number"},
                "kind": {"type": "string", "enum": ["content", "files", "count"]},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    }
    for name in ("get_weather", "Bash", "Glob", "Grep", "Read", "Edit", "Write", "WebFetch")
]
CLAUDE_CODE_COUNT: dict[str, Any] = {
    "model": "tiny",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>\nToday is Friday.\n</system-reminder>"},
                {
                    "type": "text",
                    "text": "What is the weather in Oslo?",
                    "cache_control": _EPHEMERAL,
                },
            ],
        }
    ],
    "system": [
        {
            "type": "text",
            "text": "x-anthropic-billing-header: cc_version=2.1.40.1c2; cch=0a1b2;",
        },
        {
            "type": "text",
            "text": "You are Claude Code, Anthropic's official CLI for Claude.",
            "cache_control": _EPHEMERAL,
        },
        {"type": "text", "text": "Answer in few words. " * 40, "cache_control": _EPHEMERAL},
    ],
    "tools": CLAUDE_CODE_TOOLS,
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
}
CLAUDE_CODE_FIRST: dict[str, Any] = {
    **CLAUDE_CODE_COUNT,
    "max_tokens": 32000,
    "tool_choice": {"type": "tool", "name": "get_weather"},
    "temperature": 1,
    "metadata": {"user_id": f"user_{'0' * 64}_account__session_{'1' * 36}{'2' * 100}"},
    "stream": True,
}


def claude_code_second(content: list[Any], call: dict[str, Any]) -> dict[str, Any]:
    """What follows the answer with this content, once the tool was run."""
    result = {
        "type": "tool_result",
        "tool_use_id": call["id"],
        "content": [{"type": "text", "text": '{"temperature_c":7}'}],
        "is_error": False,
        "cache_control": _EPHEMERAL,
    }
    body = {name: value for name, value in CLAUDE_CODE_FIRST.items() if name != "tool_choice"}
    return body | {
        "max_tokens": 100,
        "messages": [
            *CLAUDE_CODE_FIRST["messages"],
            {"role": "assistant", "content": content},
            {"role": "user", "content": [result]},
        ],
    }
