"""The chat page, a client of `/v1` that the ingress serves."""
