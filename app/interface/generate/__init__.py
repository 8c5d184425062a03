"""Turns a request into a job, and generated tokens into an answer."""
