"""Which sequence computes how many tokens in the next step."""
