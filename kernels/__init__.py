"""The native engine. Everything is in `_native`; its contract is `_native/__init__.pyi`."""
