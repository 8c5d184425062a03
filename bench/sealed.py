"""What a sealed model costs when it is loaded: seconds from its folder and from its image, in turn.

The folder is loaded as the service does it and copied to huge pages, which is what a sealed model's weights always are.
The files are in the page cache, unless `--cold` drops them from it before each load. Run:
`python -m bench.sealed MODEL --threads 2`; prints one JSON object.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from app.engine.native_runner import NativeRunner
from app.model_folder import missing_file
from app.sealing.image import SealedModelError
from app.sealing.keys import make_key_file
from app.sealing.seal import seal
from app.sealing.sealed_model import SealedModel
from bench.common import at_least, machine, print_result
from kernels import _native
from quant.errors import QuantError


def measure_sealed(model: Path, *, threads: int, repeats: int, cold: bool, folder: Path) -> dict[str, Any]:
    """The median seconds of each way to load, and what that is in GB of weights per second.

    folder: where the image is written. Raises SealedModelError, OSError, and what loading raises.
    """
    if (missing := missing_file(model)) is not None:
        raise SealedModelError(f"{model}: is not a converted model: it has no {missing}")
    weights, image = model / "model.safetensors", folder / "image"
    key = make_key_file(folder / "key")
    began_s = time.perf_counter()
    seal(model, image, key, progress=False)
    seal_s = time.perf_counter() - began_s
    loads: dict[str, tuple[Path, Callable[[], NativeRunner]]] = {
        "folder": (weights, lambda: _load(str(model), threads, "auto")),
        "folder_copied": (weights, lambda: _load(str(model), threads, "huge_pages")),
        "sealed": (image, lambda: _load(SealedModel(image, key), threads, "auto")),
    }
    seconds: dict[str, list[float]] = {name: [] for name in loads}
    for _ in range(repeats + 1):
        for name, (file, load) in loads.items():
            if cold:
                _drop_from_page_cache(file)
            began_s = time.perf_counter()
            runner = load()
            seconds[name].append(time.perf_counter() - began_s)
            del runner  # before the next one, which needs the memory
    load_s = {name: statistics.median(taken[1:]) for name, taken in seconds.items()}
    size = weights.stat().st_size
    return {
        "model": model.name,
        "weights_bytes": size,
        "image_bytes": image.stat().st_size,
        "seal_s": round(seal_s, 4),
        "load_s": {name: round(taken_s, 4) for name, taken_s in load_s.items()},
        "load_gb_per_s": {name: round(size / taken_s / 1e9, 3) for name, taken_s in load_s.items()},
        "threads": threads,
        "repeats": repeats,
        "cold": cold,
        **machine(),
    }


def _load(files: "str | _native.ModelFiles", threads: int, weight_memory: str) -> NativeRunner:
    return NativeRunner(
        files,
        threads=threads,
        weight_memory=weight_memory,
        kv_pages=1,
        max_sequences=1,
        max_step_tokens=1,
        max_context_tokens=_native.PAGE_TOKENS,
    )


def _drop_from_page_cache(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())  # only what is on the disk is dropped
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.sealed", description=__doc__)
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder of a converted model")
    parser.add_argument("--threads", type=at_least(1), default=1, help="compute threads (default %(default)s)")
    parser.add_argument("--repeats", type=at_least(1), default=5, help="rounds; medians count (default %(default)s)")
    parser.add_argument("--cold", action="store_true", help="read from the disk, not from the page cache")
    parser.add_argument("--folder", type=Path, help="where the image is written for the time of the bench")
    options = parser.parse_args(arguments)

    def measure() -> dict[str, Any]:
        with TemporaryDirectory(dir=options.folder) as folder:
            return measure_sealed(
                options.model,
                threads=options.threads,
                repeats=options.repeats,
                cold=options.cold,
                folder=Path(folder),
            )

    return print_result(measure, (ValueError, QuantError, OSError), indent=2)


if __name__ == "__main__":
    raise SystemExit(main())
