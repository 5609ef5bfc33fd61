"""Pictures of requests: found, fetched, looked at and made into pixels for the engine."""
