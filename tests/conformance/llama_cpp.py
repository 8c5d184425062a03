"""llama.cpp's source, whose templates and vocabularies the conformance runs read: fetched once, in llama-cpp-python."""

import os
import subprocess
import sys
from pathlib import Path

from tests.service.running import ROOT

_REQUIREMENTS = Path(__file__).parent / "requirements" / "llama_cpp.txt"
_FOLDER = ROOT / "build" / "conformance" / "llama_cpp"


def source_archive() -> Path:
    """The tar file. pip checks its hash."""
    if not list(_FOLDER.glob("*.tar.gz")):
        print("Fetching llama.cpp's source", file=sys.stderr, flush=True)
        # pip asks the package for its metadata, with the tools that the environment has already.
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        pip += ["--no-build-isolation", "--no-binary", ":all:", "--require-hashes", "--dest", str(_FOLDER)]
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        subprocess.run([*pip, "--requirement", str(_REQUIREMENTS)], check=True, env=os.environ | {"PATH": path})
    (archive,) = _FOLDER.glob("*.tar.gz")
    return archive
