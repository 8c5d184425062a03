"""A model's thoughts: how much a request asks for, and how the thought is split from the answer."""
