"""One node of a Ray cluster, as a pod runs it: `redoubt node head` and `redoubt node worker`."""
