"""Plans a validated request into requests for the engine, one file a family of endpoints."""
