"""What operators do to tenants, their keys and adapters, and its consequences in each worker."""
