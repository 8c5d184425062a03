"""Speculative decoding without a second model: drafts from the text so far."""
