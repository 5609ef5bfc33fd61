"""The asyncio gateway: OpenAI-compatible SSE and WebSocket streaming. Never imports torch."""
