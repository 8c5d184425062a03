"""What the service says of itself: its OpenAPI document, and a page of it."""
