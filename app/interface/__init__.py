"""The HTTP interface: requests in, text out, without the engine."""
