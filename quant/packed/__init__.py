"""The packed model: its matrices, the file that holds them, and the native engine that runs it."""
