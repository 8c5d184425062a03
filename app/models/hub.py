"""Asks a hub (`HF_ENDPOINT`) for a repository's files and fetches them: resumed, and checked against its digests.

`huggingface_hub` knows the hub's routes, its errors and where a token is; since 2.0 its own download begins anew after
an interruption and compares sizes alone, so the bytes are read here. A token is in a request's header and nowhere else.
Nothing but weights in safetensors or GGUF, JSON and templates is fetched. Knows neither the store nor conversions.
"""

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from app.models.names import HubName
from quant.errors import QuantError

_SMALL: Final = re.compile(r"[\w.-]+\.(?:json|jinja)", re.ASCII)
_MODULE: Final = re.compile(r"\d{1,2}_[A-Za-z]{1,32}/(config\.json|model\.safetensors)", re.ASCII)
"""Files of a sentence-transformers repository's folders: pooling, and dense layers behind it."""
_MOST_SMALL_BYTES: Final = 256 << 20
"""They come before the disk is checked."""
_TYPE: Final = re.compile(
    r"[._-]((?:UD-)?(?:I?Q[1-8]\w*|TQ\d\w*|MXFP4\w*|BF16|F16|F32))(?:-\d{5}-of-\d{5})?\.gguf", re.IGNORECASE
)
_PART: Final = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
_USUAL: Final = ("Q4_K_M", "Q4_0", "Q4_1", "MXFP4", "IQ4_XS", "Q8_0")
"""Types that are taken where none is asked for, the first one that is there."""
_NO_MODELS: Final = ("mmproj", "mtp-", "imatrix")
"""GGUFs beside a model: what sees pictures, what predicts further tokens, an importance matrix."""
_PICKLED: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_TRIES: Final = 5
"""In a row that bring no byte."""
_LONGEST_PAUSE_S: Final = 8.0
_TIMEOUT_S: Final = 20.0
_AGAIN: Final = (408, 429, 500, 502, 503, 504)


class HubError(QuantError):
    """The hub can't give what is asked for; the message says what to do."""


class OfflineError(HubError):
    """The network is not to be used, or not there."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository."""

    name: str
    size_bytes: int
    digest: str
    """SHA-256 of a large file; of a small one, which has 40 digits, Git's SHA-1 of a blob."""


@dataclass(frozen=True, slots=True)
class Repository:
    """One revision of a repository, as the hub describes it."""

    name: HubName
    commit: str
    licence: str
    gated: bool
    files: tuple[HubFile, ...]

    def file(self, name: str) -> HubFile:
        """A file by its name. Raises HubError."""
        for each in self.files:
            if each.name == name:
                return each
        raise HubError(f"{self.name}: has no {name}, which it promises: it is incomplete; take another repository")

    @property
    def gguf_types(self) -> list[str]:
        """The types of its GGUF files."""
        return sorted({found[1].upper() for file in self._ggufs() if (found := _TYPE.search(file.name))})

    def _ggufs(self) -> Iterator[HubFile]:
        for file in self.files:
            name = PurePosixPath(file.name).name.lower()
            if name.endswith(".gguf") and not name.startswith(_NO_MODELS):
                yield file

    def ggufs(self) -> list[HubFile]:
        """The GGUF file that the name asks for, in all its parts; empty: it asks for the folder. Raises HubError."""
        wanted: str | None = self.name.gguf
        there = list(self._ggufs())
        if wanted is None:
            if any(file.name.endswith(".safetensors") for file in self.files) or not there:
                return []
            types = self.gguf_types
            wanted = next((each for each in _USUAL if each in types), types[0] if len(types) == 1 else None)
            if wanted is None and len(there) == 1:
                return there
        found = [file for file in there if wanted is not None and _is_of(file, wanted)]
        found = found or [file for file in there if wanted is not None and _is_of(file, f"UD-{wanted}")]
        whole = {_PART.sub("", file.name) for file in found}
        if len(whole) == 1:
            return sorted(found, key=lambda file: file.name)
        repository = self.name.repository
        if whole:
            names = ", ".join(PurePosixPath(file.name).name for file in found[:8])
            raise HubError(
                f"{self.name}: there are several files of that type: name one, as {repository}:FILE: {names}"
            )
        known = ", ".join(self.gguf_types) or "none"
        what = f"has no GGUF of the type {wanted}" if wanted else "has GGUFs of several types"
        raise HubError(f"{self.name}: {what}; its types: {known}. Name one: {repository}:TYPE")

    def small_files(self) -> list[HubFile]:
        """What a model folder has beside weights."""
        small = [file for file in self.files if _SMALL.fullmatch(file.name)]
        if any(file.name == "modules.json" for file in small):
            small += [file for file in self.files if _MODULE.fullmatch(file.name) and file.name.endswith(".json")]
        return [file for file in small if file.size_bytes <= _MOST_SMALL_BYTES]

    def weights(self, index: Iterable[str]) -> list[HubFile]:
        """The safetensors of a model folder. index: what its index names; none: it has none. Raises HubError."""
        names = sorted(set(index)) or [_SINGLE]
        if not any(file.name in names for file in self.files):
            raise HubError(f"{self.name}: {self._lack()}")
        for name in names:
            if PurePosixPath(name).name != name or not name.endswith(".safetensors"):
                raise HubError(f"{self.name}: {INDEX} names {name!r:.80}, which is no safetensors file beside it")
        behind = [file for file in self.files if _MODULE.fullmatch(file.name) and file.name.endswith(".safetensors")]
        return [*(self.file(name) for name in names), *behind]

    def _lack(self) -> str:
        names = [file.name for file in self.files]
        if pickled := sorted(name for name in names if name.endswith(_PICKLED)):
            return (
                f"has only pickled weights ({pickled[0]}), which can run code when they are loaded: take a repository"
                " with safetensors, or a GGUF"
            )
        if "adapter_config.json" in names:
            return "is an adapter (LoRA): take a repository that it is merged in"
        return "has neither model.safetensors nor a GGUF: take a repository in the form of transformers"


def _is_of(file: HubFile, wanted: str) -> bool:
    return PurePosixPath(file.name).name == wanted or type_of(file) == wanted.upper()


def type_of(file: HubFile) -> str:
    """A GGUF's type as its name has it, or the file's name."""
    name = PurePosixPath(file.name).name
    found = _TYPE.search(name)
    return name if found is None else found[1].upper()


def describe_repository(name: HubName) -> Repository:
    """Asks the hub. Raises HubError."""
    from huggingface_hub import HfApi

    with _worded(name):
        info = HfApi().model_info(name.repository, revision=name.revision, files_metadata=True, timeout=_TIMEOUT_S)
    if info.sha is None or not re.fullmatch("[0-9a-f]{40}", info.sha):
        raise HubError(f"{name}: the hub names no commit")
    files = []
    for each in info.siblings or ():
        digest = each.blob_id if each.lfs is None else each.lfs.sha256
        size = each.size if each.lfs is None else each.lfs.size
        if digest and size is not None and not PurePosixPath(each.rfilename).is_absolute():
            files.append(HubFile(each.rfilename, size, digest))
    card: Any = info.card_data
    licence = getattr(card, "license_name", None) or getattr(card, "license", None) or "no licence named"
    return Repository(name, info.sha, str(licence)[:80], bool(info.gated), tuple(files))


def fetched_bytes(folder: Path, files: Iterable[HubFile]) -> int:
    """How much of the files is in the folder already."""
    there = 0
    for file in files:
        path = place_of(folder, file)
        part = path if path.exists() else _partial(path)
        there += min(part.stat().st_size, file.size_bytes) if part.exists() else 0
    return there


def fetch(
    repository: Repository, files: Sequence[HubFile], folder: Path, came: Callable[[int], None] = lambda count: None
) -> None:
    """Fetches files into the folder, under their names in it (`place_of`); those that are there already stay.

    came: is told of new bytes; of fewer than none where a beginning was in vain. Raises HubError, OSError.
    """
    for file in files:
        path = place_of(folder, file)
        if path.exists():
            continue
        path.parent.mkdir(exist_ok=True)
        partial = _partial(path)
        _fetch_bytes(repository, file, partial, file.size_bytes, came)
        if (digest := _digest(partial, file)) != file.digest:
            partial.unlink()
            raise HubError(
                f"{repository.name}: {file.name} has the digest {digest[:12]}... and not the hub's,"
                f" {file.digest[:12]}...: it is removed; try again, and if it stays so another HF_ENDPOINT"
            )
        partial.replace(path)


def fetch_beginning(repository: Repository, file: HubFile, folder: Path, most_bytes: int) -> bytes:
    """The first bytes of a file, of which `fetch` then needs only the rest."""
    path = place_of(folder, file)
    path.parent.mkdir(exist_ok=True)
    most_bytes = min(most_bytes, file.size_bytes)
    if not path.exists():
        path = _partial(path)
        _fetch_bytes(repository, file, path, most_bytes, lambda count: None)
    with path.open("rb") as there:
        return there.read(most_bytes)


def place_of(folder: Path, file: HubFile) -> Path:
    """Where a file is fetched to: under the last part of its name, or with its folder if that is a module's."""
    return folder / (file.name if _MODULE.fullmatch(file.name) else PurePosixPath(file.name).name)


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _digest(path: Path, file: HubFile) -> str:
    with path.open("r+b") as content:
        os.fsync(content.fileno())
        if len(file.digest) == 64:
            return hashlib.file_digest(content, "sha256").hexdigest()
        blob = hashlib.sha1(b"blob %d\0" % file.size_bytes, usedforsecurity=False)
        return hashlib.file_digest(content, lambda: blob).hexdigest()


def _fetch_bytes(repository: Repository, file: HubFile, partial: Path, until: int, came: Callable[[int], None]) -> None:
    """Adds bytes to the file until it has so many; goes on where a connection is cut, as long as bytes come."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    tries = 0
    with partial.open("ab") as out, _worded(repository.name):
        while (have := out.tell()) < until:
            try:
                _read(repository, file, out, until, came)
            except (httpx2.TransportError, HfHubHTTPError) as error:
                if isinstance(error, HfHubHTTPError) and error.response.status_code not in _AGAIN:
                    raise
                out.flush()
                tries = 1 if out.tell() > have else tries + 1
                if tries >= _TRIES:
                    raise
                time.sleep(min(_LONGEST_PAUSE_S, 0.25 * 2**tries))
            except OSError as error:
                raise HubError(
                    f"{partial}: {error.strerror}: make room; what has come stays, and the same command goes on"
                ) from error


def _read(repository: Repository, file: HubFile, out: Any, until: int, came: Callable[[int], None]) -> None:
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils._headers import build_hf_headers
    from huggingface_hub.utils._http import hf_raise_for_status

    url = hf_hub_url(repository.name.repository, file.name, revision=repository.commit)
    have = out.tell()
    asked = {"Range": f"bytes={have}-{until - 1}", "Accept-Encoding": "identity"}
    with get_session().stream("GET", url, headers=build_hf_headers() | asked, timeout=_TIMEOUT_S) as response:
        hf_raise_for_status(response)
        if response.status_code == 200 and have:  # a server without ranges
            came(-have)
            out.truncate(0)
            have = 0
        for chunk in response.iter_bytes():  # of no size: what comes before a cut is kept
            kept = chunk[: until - have]
            out.write(kept)
            came(len(kept))
            have += len(kept)
            if have >= until:
                return
    out.flush()


@contextmanager
def _worded(name: HubName) -> Iterator[None]:
    """Turns the errors of huggingface_hub into one line each, without addresses: those of storage are signed."""
    import httpx2
    from huggingface_hub import constants, errors, get_token
    from huggingface_hub.utils import logging as their_logging

    their_logging.set_verbosity(logging.ERROR)
    constants.HF_HUB_DISABLE_TELEMETRY = True  # it would look for programs around us, and name them
    page, repository = f"{constants.ENDPOINT}/{name.repository}", name.repository
    try:
        yield
    except errors.OfflineModeIsEnabled as error:
        raise OfflineError(
            f"{name}: is not here, and HF_HUB_OFFLINE is set: where there is a network, redoubt pull {name}"
        ) from error
    except errors.GatedRepoError as error:
        if get_token() is None:
            do = f"accept its licence at {page}, then set HF_TOKEN, or `hf auth login`"
        else:
            do = f"your token has no access yet: accept its licence at {page} with the same account"
        raise HubError(f"{repository}: is gated: {do}") from error
    except errors.RevisionNotFoundError as error:
        raise HubError(f"{repository}: has no revision {name.revision}; {page} lists its branches and tags") from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(
            f"{repository}: is no path here, and the hub has no such repository, or shows it to other accounts only:"
            " check the name, or set HF_TOKEN"
        ) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status == 401:
            raise HubError(f"{repository}: the hub refuses the token: check HF_TOKEN, or `hf auth login`") from error
        if status == 403:
            raise HubError(f"{repository}: the token may not read it: give it that permission at {page}") from error
        raise HubError(f"{repository}: {constants.ENDPOINT} answers {status}: try again later") from error
    except (errors.HFValidationError, ValueError) as error:
        raise HubError(f"{repository}: is not understood: {error!s:.200}") from error
    except httpx2.TransportError as error:
        raise OfflineError(
            f"{name}: {constants.ENDPOINT} can't be reached, or the connection was cut ({type(error).__name__}): the"
            " same command goes on from here; HF_ENDPOINT names a mirror"
        ) from error
