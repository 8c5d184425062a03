"""The image's bill of materials from its locks. Knows nothing of how the image is built."""

from collections.abc import Iterable
from pathlib import Path

from cyclonedx.model.component import ComponentType
from packageurl import PackageURL

from kuberay.image.locks import Deb, Wheel
from tools import bill_of_materials
from tools.bill_of_materials import part


def write_sbom(path: Path, debs: Iterable[Deb], wheels: Iterable[Wheel], version: str, epoch: int) -> None:
    """The same text from the same locks.

    debs: those of the image; version: of our package; epoch: Unix seconds, the time that it names.
    """
    parts = [part(PackageURL("deb", "debian", deb.name, deb.version, _of(deb)), deb.sha256) for deb in debs]
    parts += [part(PackageURL("pypi", None, wheel.name, wheel.version), wheel.sha256) for wheel in wheels]
    bill_of_materials.write(path, ComponentType.CONTAINER, version, parts, epoch)


def _of(deb: Deb) -> dict[str, str]:
    return {"arch": deb.architecture, "distro": "debian-13"}
