"""Rewrites a GGUF in another of llama.cpp's types, with an importance matrix or without; run by the peer's interpreter.

    python -m bench.experiments.llama_cpp_quantize IN OUT TYPE [--imatrix FILE] [--threads N]

TYPE is Q4_0, IQ4_NL, ...; F32 gives a quantized file's own values back. FILE is an .npz: a tensor's name -> mean square
of each of its inputs, as llama.cpp's own tool would have measured it. Does not know where either came from.
"""

import argparse
import ctypes
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def quantize(
    source: Path, out: Path, kind: str, imatrix: Mapping[str, NDArray[np.float32]] | None, threads: int
) -> None:
    """Writes `out`. Raises ValueError for a type that there is not, RuntimeError where llama.cpp refuses."""
    lib: Any = import_module("llama_cpp")
    name = "LLAMA_FTYPE_ALL_F32" if kind == "F32" else f"LLAMA_FTYPE_MOSTLY_{kind}"
    if not hasattr(lib, name):
        raise ValueError(f"{kind}: llama.cpp has no such type")
    lib.llama_backend_init()
    params = lib.llama_model_quantize_default_params()
    params.nthread, params.ftype, params.allow_requantize = threads, getattr(lib, name), True
    params.pure = False
    data = {key: np.ascontiguousarray(values, np.float32) for key, values in (imatrix or {}).items()}
    entries = (lib.llama_model_imatrix_data * (len(data) + 1))()  # the last one, without a name, ends it
    for entry, (key, values) in zip(entries, data.items(), strict=False):
        entry.name = key.encode()
        entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        entry.size = values.size
    if data:
        params.imatrix = ctypes.cast(entries, ctypes.POINTER(lib.llama_model_imatrix_data))
    failed = lib.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(params))
    if failed:
        raise RuntimeError(f"{source}: llama.cpp could not quantize it to {kind}: {failed}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("type")
    parser.add_argument("--imatrix", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    imatrix = None if options.imatrix is None else dict(np.load(options.imatrix))
    quantize(options.source, options.out, options.type, imatrix, options.threads)


if __name__ == "__main__":
    main()
