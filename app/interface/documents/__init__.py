"""The OpenAPI document, the same as a web page, and conversations as Markdown."""
