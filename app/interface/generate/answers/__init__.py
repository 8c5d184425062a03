"""Turns tokens into choices, and choices into an answer or events, one file a family of endpoints."""
