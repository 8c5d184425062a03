"""The number formats: codes, scales and groups of a weight matrix, and the arithmetic that defines them."""
