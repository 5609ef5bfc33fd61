"""The WebSockets, from their tickets to the frames that wait to be sent."""
