"""Bridges to transformers: its calls on the engine without torch, and a quantization backend with torch."""
