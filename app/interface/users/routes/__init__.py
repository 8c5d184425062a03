"""The routes that exist only with accounts."""
