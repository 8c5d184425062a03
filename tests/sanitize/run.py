"""`make sanitize`: the native code under sanitizers, one line of output a part.

    python -m tests.sanitize.run [PART...]

    threads      a program of thread pools and steps on several threads, under ThreadSanitizer
    readers      a program that reads damaged packed models, and a sound one while each of its allocations fails once,
                 under AddressSanitizer and UndefinedBehaviorSanitizer
    kernels      tests/kernels, under the same
    files        hostile checkpoints and packed models, under the same

The first finding of a sanitizer ends the process that it is in. Builds go to build/tsan and build/sanitize, and so do
the logs; the module that serves stays as it is. Knows nothing of what is tested.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quant.codes.matrix import WeightType
from tests.kernels.hybrid_model import HYBRID
from tests.kernels.test_decoder import MIXTURES
from tests.kernels.tiny_model import described_tensors, write_described, write_random_model
from tests.run import GROUPED

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"
MODULE = BUILD / "sanitize" / "kernels"
LONGEST_S = 3600
# What is undefined when a float becomes an integer is not part of "undefined".
ADDRESSES = "address,undefined,float-cast-overflow"

OPTIONS = {
    # A size that can't be had is std::bad_alloc, as without sanitizers. Use after return is not looked for: in the
    # frames for it GCC before 13.3 aligns vectors of 64 bytes to 32 (GCC bug 110027).
    "ASAN_OPTIONS": "allocator_may_return_null=1:detect_stack_use_after_return=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
ROUNDS = "5000"
KERNELS = (
    "tests/kernels",
    "--ignore=tests/kernels/test_model_parity.py",  # other libraries compute beside it
    "--ignore=tests/kernels/test_hardening.py",  # looks at the module that serves
    "-k",
    "not 11008 and not kept",  # many minutes, of loops that smaller sizes run too
)
FILES = ("tests/quant/sources", "tests/quant/packed", "-k", "fuzz or packed")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one part; `summary` is a line."""

    passed: bool
    summary: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the parts that are named, or all; 1 where one failed."""
    parts: dict[str, Callable[[], Outcome]] = {
        "threads": _threads,
        "readers": _readers,
        "kernels": lambda: _pytest("kernels", KERNELS),
        "files": lambda: _pytest("files", FILES),
    }
    parser = argparse.ArgumentParser(prog="make sanitize", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[[], *parts], metavar="PART")
    wanted = parser.parse_args(arguments).parts or list(parts)
    passed = True
    for name in wanted:
        began = time.monotonic()
        outcome = parts[name]()
        passed &= outcome.passed
        verdict = "ok" if outcome.passed else "FAILED"
        print(f"{name:8} {verdict}  {outcome.summary}  ({time.monotonic() - began:.0f} s)", flush=True)
    return int(not passed)


def _threads() -> Outcome:
    folder = BUILD / "tsan"
    if not _built(folder, "thread", "redoubt_threads", "-DREDOUBT_TESTING=OFF"):
        return Outcome(False, f"see {_shown(folder / 'build.log')}")
    log = folder / "threads.log"
    with tempfile.TemporaryDirectory() as temporary:
        models = [write_random_model(Path(temporary) / "llama", kind="sym_int4"), *_mixtures(Path(temporary))]
        passed = all(
            _run([folder / "redoubt_threads", each], log, {"TSAN_OPTIONS": "halt_on_error=1"}) for each in models
        )
    return Outcome(passed, "no race" if passed else f"see {_shown(log)}")


def _readers() -> Outcome:
    folder = BUILD / "sanitize"
    if not _address_built("redoubt_hostile_files"):
        return Outcome(False, f"see {_shown(folder / 'build.log')}")
    log = folder / "readers.log"
    with tempfile.TemporaryDirectory() as temporary:
        damaged = Path(temporary) / "damaged"
        damaged.mkdir()
        summaries = []
        for model in _mixtures(Path(temporary), "lut4"):
            if not _run([folder / "redoubt_hostile_files", model, damaged, ROUNDS], log, OPTIONS):
                return Outcome(False, f"see {_shown(log)}")
            summaries.append(log.read_text(errors="replace").strip())
    return Outcome(True, "; ".join(summaries))


def _mixtures(folder: Path, kind: WeightType = "sym_int4") -> list[Path]:
    """Models with experts, parallel layers, output norms, windows, states and all else that a description can say."""
    return [
        write_described(folder / str(number), decoder, {}, described_tensors(decoder), kind)
        for number, decoder in enumerate([*MIXTURES.values(), HYBRID])
    ]


def _pytest(name: str, selection: Sequence[str]) -> Outcome:
    folder = BUILD / "sanitize"
    if not _address_built("_native"):
        return Outcome(False, f"see {_shown(folder / 'build.log')}")
    log = folder / f"{name}.log"
    command = [sys.executable, "-m", "pytest", "-p", "tests.sanitize.module", "-p", "no:cacheprovider", "-q"]
    workers = ["--numprocesses", str(len(os.sched_getaffinity(0))), *GROUPED, "--timeout=1800"]
    passed = _run([*command, *workers, *selection], log, _address_environment())
    lines = log.read_text(errors="replace").splitlines()
    counts = [line.strip("= ") for line in lines if re.search(r"\d+ (passed|failed|error)", line)]
    return Outcome(passed, "".join(counts[-1:]) if passed else f"see {_shown(log)}")


def _address_environment() -> dict[str, str]:
    """Python itself is not instrumented, so the library comes first; and Python has memory of malloc alone."""
    # The other library so that exceptions can be watched too.
    libraries = [
        subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    return {
        "LD_PRELOAD": " ".join(str(Path(library).resolve()) for library in libraries),
        **OPTIONS,
        # Python leaves much for the process's end.
        "ASAN_OPTIONS": f"{OPTIONS['ASAN_OPTIONS']}:detect_leaks=0",
        "PYTHONMALLOC": "malloc",
        "REDOUBT_SANITIZED_MODULE": str(MODULE),
    }


def _address_built(target: str) -> bool:
    return _built(BUILD / "sanitize", ADDRESSES, target, f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={MODULE}")


def _built(folder: Path, sanitizers: str, target: str, *options: str) -> bool:
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "build.log"
    definitions = [f"-DREDOUBT_SANITIZE={sanitizers}", f"-DPython_EXECUTABLE={sys.executable}", *options]
    if not _run(["cmake", "-S", ROOT / "kernels", "-B", folder, "-G", "Ninja", *definitions], log):
        return False
    jobs = str(len(os.sched_getaffinity(0)))
    return _run(["cmake", "--build", folder, "--target", target, "--parallel", jobs], log)


def _run(command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None) -> bool:
    """Whether it ended with status 0; what it printed is in `log`."""
    with log.open("wb") as output:
        result = subprocess.run(
            [str(part) for part in command],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=LONGEST_S,
            check=False,
        )
    return result.returncode == 0


def _shown(path: Path) -> Path:
    return path.relative_to(ROOT)


if __name__ == "__main__":
    sys.exit(main())
