"""The workers: each owns one engine, on cores of its own."""
