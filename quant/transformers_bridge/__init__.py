"""The engine for users of transformers: its calls without torch, and its quantization backend with torch."""
