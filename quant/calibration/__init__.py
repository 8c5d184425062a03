"""Runs a checkpoint layer by layer in NumPy, to get the inputs of its matrices; no torch, no engine."""
