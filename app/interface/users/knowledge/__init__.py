"""Collections of documents: read in the background, opened in memory, and searched."""
