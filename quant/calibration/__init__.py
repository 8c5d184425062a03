"""Runs a checkpoint layer by layer in NumPy, to know the inputs of its matrices; no torch, no engine."""
