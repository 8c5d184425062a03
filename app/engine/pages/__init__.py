"""KV pages: the pool, and the names under which cached pages are found."""
