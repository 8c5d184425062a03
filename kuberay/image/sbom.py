"""The image's bill of materials (CycloneDX 1.6, JSON) from its locks. Knows nothing of how the image is built."""

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from kuberay.image.locks import Deb, Wheel


def write_sbom(path: Path, debs: Iterable[Deb], wheels: Iterable[Wheel], version: str, epoch: int) -> None:
    """The same text from the same locks.

    debs: those of the image; version: of our package; epoch: Unix seconds, the time that it names.
    """
    components = [
        _component(deb.name, deb.version, deb.sha256, PackageURL("deb", "debian", deb.name, deb.version, _of(deb)))
        for deb in debs
    ]
    components += [
        _component(wheel.name, wheel.version, wheel.sha256, PackageURL("pypi", None, wheel.name, wheel.version))
        for wheel in wheels
    ]
    image = Component(name="redoubt", version=version, type=ComponentType.CONTAINER, bom_ref="redoubt")
    named = "\n".join(f"{one.bom_ref.value} {one.version}" for one in components)
    bom = Bom(components=components, serial_number=uuid.uuid5(uuid.NAMESPACE_OID, f"{version} {epoch}\n{named}"))
    bom.metadata.component = image
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    bom.register_dependency(image, components)
    path.write_text(JsonV1Dot6(bom).output_as_string(indent=1) + "\n")


def _component(name: str, version: str, sha256: str, url: PackageURL) -> Component:
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=url.to_string(),
        purl=url,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)],
    )


def _of(deb: Deb) -> dict[str, str]:
    return {"arch": deb.architecture, "distro": "debian-13"}
