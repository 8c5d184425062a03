"""Translates each model family's configuration and tensor names for the engine's one decoder."""
