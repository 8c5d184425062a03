"""Users, their credentials and keys, limits, usage and audit: all that outlives the process but the pages."""
