"""The inference engine: continuous batching over a paged KV cache, in a process of its own."""
