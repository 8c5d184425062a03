"""Batches of requests that nobody waits for, and the files with their lines and results."""
