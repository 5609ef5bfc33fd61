"""The shapes on the wire, as msgspec structs. No behaviour lives here."""
