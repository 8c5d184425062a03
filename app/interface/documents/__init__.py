"""The description of the service: its OpenAPI document, and that as a page."""
