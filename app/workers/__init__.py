"""The workers: one engine each, on cores of its own."""
