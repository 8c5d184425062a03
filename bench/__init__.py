"""Benchmarks: of kernels, of the engine and of the service. Never imported by the service."""
