"""`testing`: single kernels, their timings and the machine's limits, from `kernels._native.testing`.

That part of the native module is for a source tree and is not in wheels. Importing this module without it ends the
process with one line that says so.
"""

try:
    from kernels._native import testing
except ImportError as error:
    raise SystemExit(
        "This measurement needs kernels._native.testing, which wheels lack: run `make build` in a source tree."
    ) from error

__all__ = ["testing"]
