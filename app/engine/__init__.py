"""Continuous batching over the native model. Knows token ids only: no text, no HTTP, no Ray."""
