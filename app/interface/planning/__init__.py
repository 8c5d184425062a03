"""From a validated request to what the engine is asked for."""
