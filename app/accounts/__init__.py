"""Users, their credentials and keys, limits, usage and audit: everything that outlives the process except KV pages."""
