"""What a model's name means: a path, an entry of the catalogue, or a repository of the hub. Asks nobody."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from quant.errors import QuantError

_PREFIXES: Final = ("hub:", "https://huggingface.co/")
_PART: Final = r"[A-Za-z0-9_][\w.-]*"
_HUB: Final = re.compile(rf"({_PART}/{_PART})(?:@([^\s:@]+))?(?::([\w.-]+))?", re.ASCII)


class ModelNameError(QuantError):
    """A name that means no model, or may mean two."""


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository of the hub, or one GGUF file of it."""

    repository: str
    revision: str | None = None
    """A branch, a tag or a commit; None: the main branch."""
    gguf: str | None = None
    """A type, as Q4_K_M, or a file's name; None: the folder, or the file of a usual type."""

    def __str__(self) -> str:
        return self.repository + (f"@{self.revision}" if self.revision else "") + (f":{self.gguf}" if self.gguf else "")

    @property
    def short(self) -> str:
        """The model's name in the API."""
        name = self.repository.rpartition("/")[2]
        return name if self.gguf is None else f"{name}-{self.gguf.removesuffix('.gguf')}"


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A model that is worth running on CPUs."""

    name: str
    source: HubName
    shape: str
    """Of quant.conversion.shapes, SHAPES or ENCODER_SHAPES."""
    licence: str
    good_for: str
    draft: str | None = None
    """The entry of a smaller model with the same vocabulary, which can draft for it."""
    head: HubName | None = None
    """An EAGLE-3 head that was trained for it."""


@cache
def catalogue() -> Mapping[str, CatalogueEntry]:
    """quant/catalogue.toml."""
    values = tomllib.loads((files("quant") / "catalogue.toml").read_text(encoding="utf-8"))
    entries = {}
    for name, entry in values.items():
        source = _hub_name(entry["source"])
        assert source is not None, name
        head = _hub_name(entry["head"]) if "head" in entry else None
        others = entry["shape"], entry["licence"], entry["for"], entry.get("draft")
        entries[name] = CatalogueEntry(name, source, *others, head)
    return entries


def catalogue_draft(name: str, *, head: bool = False) -> str | None:
    """The name of the model that the catalogue has to draft for a model, an entry or its source; None: it has none.

    head: of the EAGLE-3 head instead.
    """
    entry = catalogue().get(name.lower())
    if entry is None:
        meant = _hub_name(name)
        entry = next((one for one in catalogue().values() if meant is not None and _same(one.source, meant)), None)
    if entry is None or not head:
        return None if entry is None else entry.draft
    return None if entry.head is None else str(entry.head)


def _same(source: HubName, meant: HubName) -> bool:
    return source.repository.lower() == meant.repository.lower()


def read_name(name: str) -> Path | HubName:
    """The path of a file or folder, or a name on the hub. Raises ModelNameError."""
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            found = _hub_name(name.removeprefix(prefix).rstrip("/"))
            if found is None:
                raise ModelNameError(f"{name}: is not {prefix}ORG/REPOSITORY, with @REVISION and :TYPE if wanted")
            return found
    path, entry, hub = Path(name).expanduser(), catalogue().get(name.lower()), _hub_name(name)
    if path.exists():
        other = entry.source if entry is not None else hub
        if other is not None and (entry is not None or not _is_model(path)):
            is_entry = "an entry of the catalogue" if entry is not None else "a name on the hub"
            raise ModelNameError(
                f"{name}: is a path here and {is_entry}: write ./{name} for the path, hub:{other} for the repository"
            )
        return path
    if entry is not None:
        return entry.source
    if hub is not None and not hub.repository.endswith((".gguf", ".safetensors")):
        return hub
    if hub is not None or "/" in name or path.suffix in (".gguf", ".safetensors"):
        raise ModelNameError(f"{name}: there is no such file or folder")
    raise ModelNameError(
        f"{name}: is no file or folder here, no entry of the catalogue (`redoubt models --for-this-machine` lists it)"
        " and no ORG/REPOSITORY of the hub"
    )


def _hub_name(text: str) -> HubName | None:
    found = _HUB.fullmatch(text)
    return None if found is None else HubName(found[1], found[2], found[3])


def _is_model(path: Path) -> bool:
    return path.is_file() or (path / "config.json").exists()
