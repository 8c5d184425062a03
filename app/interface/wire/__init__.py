"""The request and response types of the API, one file a family of endpoints."""
