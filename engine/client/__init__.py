"""The gateway's end of the engine process: an asyncio client. Never imports torch."""
