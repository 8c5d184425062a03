"""Starts the service on this machine: configuration, a private Ray, the proxy, a clean end."""
