"""Clients of our own: what talks to the service over HTTP only."""
