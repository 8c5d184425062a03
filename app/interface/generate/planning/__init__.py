"""From a validated request to the requests for the engine, a file a family."""
