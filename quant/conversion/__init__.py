"""Converts a checkpoint to a packed model and back to floats: planning, quantizing piece by piece, writing."""
