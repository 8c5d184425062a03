"""Speculation without a second model: guesses from the text so far."""
