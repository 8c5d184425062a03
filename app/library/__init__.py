"""The engine from Python, with transformers' calls."""
