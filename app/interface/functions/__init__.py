"""Function calling: the callable functions, their grammar, and the parser of calls."""
