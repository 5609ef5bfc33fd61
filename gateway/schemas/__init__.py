"""The messages of the API as msgspec structs, without behaviour."""
