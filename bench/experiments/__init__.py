"""Measurements that decided something once: `python -m bench.experiments.NAME`, from a source tree.

What came out is in docs/ and bench/results/README.md. No command and no table needs them, and no test runs them.
"""
