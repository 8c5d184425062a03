"""The context of one HTTP request, and how it fails."""
