"""Pages of keys and values on disk: sealed for one user and one conversation, and found again by their names."""
