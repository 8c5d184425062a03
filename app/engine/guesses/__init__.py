"""Speculative decoding without a second model: guesses from the text so far."""
