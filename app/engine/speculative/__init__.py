"""Speculative decoding: drafts from the text so far, by a smaller model, or by a layer or head of the model."""
