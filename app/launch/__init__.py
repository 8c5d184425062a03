"""Starts the service on this machine, or as a Ray Serve configuration."""
