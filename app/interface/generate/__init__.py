"""A request to a job, and tokens to an answer."""
