"""Pages, grants and folders for tests of saved pages."""

import hashlib
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from app.memory.folder import PageFolder
from app.memory.page_file import PageId, file_bytes
from app.messages.memory import MemoryGrant, PageName

PAGE_TOKENS = 4
PAGE_BYTES = 1000
FILE_BYTES = file_bytes(PAGE_BYTES)
FINGERPRINT = hashlib.sha256(b"a model").digest()


def key_of(*names: str) -> bytes:
    """32 bytes that stand for these names."""
    return hashlib.sha256("/".join(names).encode()).digest()


def grant_for(user: str, conversation: str = "chat", *, shared_tokens: int = 0, save: bool = True) -> MemoryGrant:
    return MemoryGrant(
        owner=key_of(user, "owner").hex()[:32],
        names_key=key_of(user, "names"),
        conversation_key=key_of(user, conversation),
        shared_key=key_of(user, "shared"),
        conversation_key_id=key_of(user, conversation, "id")[:16],
        shared_key_id=key_of(user, "shared", "id")[:16],
        shared_tokens=shared_tokens,
        save=save,
    )


def page_of(text: str, index: int = 0) -> PageName:
    return PageName(key_of(text, str(index)), index)


def id_of(user: str, text: str, index: int = 0, conversation: str = "chat", **changes: Any) -> PageId:
    page_id = PageId.of(grant_for(user, conversation), page_of(text, index), FINGERPRINT, PAGE_TOKENS)
    return replace(page_id, **changes)


def contents_of(page_id: PageId, size: int = PAGE_BYTES) -> bytes:
    """What the page of that name has in it: nothing compressible, and the same in every process."""
    return Random(page_id.name).randbytes(size)


def open_folder(root: Path, **changes: Any) -> PageFolder:
    options: dict[str, Any] = {
        "fingerprint": FINGERPRINT,
        "page_bytes": PAGE_BYTES,
        "most_bytes": 1 << 20,
        "most_bytes_per_user": 1 << 20,
        "ttl_s": 1e6,
    }
    return PageFolder(root, **{**options, **changes})


def write(folder: PageFolder, page_id: PageId, *, durable: bool = False) -> None:
    room = memoryview(bytearray(FILE_BYTES))
    folder.write(page_id, memoryview(contents_of(page_id)), room, durable=durable)


def read(folder: PageFolder, page_id: PageId) -> bytes | None:
    """The page; None if there is none. Raises what `PageFolder.read` raises."""
    page = bytearray(PAGE_BYTES)
    return bytes(page) if folder.read(page_id, memoryview(bytearray(FILE_BYTES)), memoryview(page)) else None


def path_of(root: Path, page_id: PageId) -> Path:
    name = page_id.name.hex()
    return root / "v1" / page_id.owner.hex() / page_id.fingerprint.hex()[:16] / name[:2] / f"{name}.kv"


def files_in(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())
