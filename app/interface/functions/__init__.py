"""Function calling: which functions are wanted, their grammar, and the parser of calls."""
