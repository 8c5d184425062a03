"""The interface: HTTP in, text out. No engine here."""
