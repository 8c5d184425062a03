"""KV pages: the pool, and the names under which they are found again."""
