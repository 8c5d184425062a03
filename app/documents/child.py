"""The process that reads one file: without other files, network or secrets, and with bounds that the kernel keeps.

`reader` starts it for each file. The file's name comes in a line of standard input, and then its bytes; what was read
goes out as JSON. Once all is imported `seal` leaves it memory, its two pipes and nothing else: a library that a hostile
file has taken over answers for that file, and can reach neither files, other processes nor a network. Without a filter
of system calls it can open nothing, and `sandbox` says what Landlock keeps from it besides.
"""

import codecs
import json
import os
import resource
import sys
from typing import Any

from app.documents.document import MOST_CHARACTERS, DocumentError, clean_text
from app.documents.encoding import CODECS
from app.documents.kinds import reader_of
from app.documents.plain import ENCODINGS
from app.documents.sandbox import SCOPES_SINCE, deny_files, deny_system_calls

_NICE = 10
"""Answers that are being computed come first."""


def main(seconds: int, memory_bytes: int) -> None:
    """Reads the file and answers."""
    os.nice(_NICE)
    bound(seconds, memory_bytes)
    name = sys.stdin.buffer.readline().decode().rstrip("\n")
    found = answer(name, sys.stdin.buffer.read())
    sys.stdout.buffer.write(json.dumps(found, ensure_ascii=False).encode())
    sys.stdout.buffer.flush()
    os._exit(0)  # what libraries do at their end is not needed


def bound(seconds: int, memory_bytes: int) -> None:
    """Gives the process its bounds."""
    limits = {
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: 0,
    }
    for which, most in limits.items():
        resource.setrlimit(which, (most, most))


def seal() -> bool:
    """Lets the process open nothing more, and make no system call that reaches beyond it.

    Returns False if this machine can do the first, and not enough of the second.
    """
    for encoding in (*ENCODINGS.split(), *CODECS):
        codecs.lookup(encoding)
    version = deny_files()
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    return deny_system_calls() or version >= SCOPES_SINCE


def answer(name: str, data: bytes) -> dict[str, Any]:
    """Returns what was read, or why nothing was."""
    try:
        kind, read = reader_of(name, data)
        sealed = seal()  # all is imported
        content = read()
        sections = [
            {"text": clean_text(one.text), "page": one.page, "mark": _line(one.mark)} for one in content.sections
        ]
        if sum(len(str(one["text"])) for one in sections) > MOST_CHARACTERS:
            raise DocumentError(f"has more than {MOST_CHARACTERS:,} characters of text: send a part of it")
        return {
            "kind": kind,
            "sections": sections,
            "notes": [_line(note) for note in content.notes],
            "pages": content.pages,
            "sealed": sealed,
        }
    except DocumentError as error:
        return {"refusal": str(error)}
    except MemoryError:
        return {"refusal": None}
    except Exception:  # a library's own, of a damaged file: its message is not for the user
        return {"refusal": "can't be read: it is damaged, or not what its name says"}


def _line(text: str) -> str:
    """Returns what has names of the file in it, as one line."""
    return " ".join(clean_text(text).split())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
