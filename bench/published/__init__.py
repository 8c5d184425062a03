"""Every table of the documents that the project came from, with ours beside: docs/published.md."""
