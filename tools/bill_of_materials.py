"""Bills of materials (CycloneDX 1.6, JSON): the same text from the same parts. Knows nothing of what has them."""

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL


def part(url: PackageURL, sha256: str | None = None) -> Component:
    """Something that ours has or needs. sha256: of its file, where that is one."""
    return Component(
        name=f"{url.namespace}/{url.name}" if url.type == "npm" and url.namespace else url.name,
        version=url.version,
        type=ComponentType.LIBRARY,
        bom_ref=url.to_string(),
        purl=url,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else (),
    )


def write(path: Path, kind: ComponentType, version: str, parts: Iterable[Component], epoch: int) -> None:
    """Writes that of one of our artifacts. epoch: Unix seconds, the time that it names."""
    parts = list(parts)
    ours = Component(name="redoubt", version=version, type=kind, bom_ref="redoubt")
    named = "\n".join(f"{one.bom_ref.value} {one.version}" for one in parts)
    bom = Bom(components=parts, serial_number=uuid.uuid5(uuid.NAMESPACE_OID, f"{version} {epoch}\n{named}"))
    bom.metadata.component = ours
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    bom.register_dependency(ours, parts)
    path.write_text(JsonV1Dot6(bom).output_as_string(indent=1) + "\n")
