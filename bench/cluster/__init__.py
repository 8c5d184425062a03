"""A cluster of pods on this machine, and what it costs beside the service without one."""
