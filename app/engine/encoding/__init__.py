"""Encoders: texts become vectors or scores, each in one step, without KV cache and without sampling."""
