"""Takes the places out of what is published: folders, addresses, the user's and the host's name.

Knows no result; what is published is decided elsewhere.
"""

import getpass
import os
import re
import shlex
import socket
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

_PATH: Final = re.compile(r"(?<![\w./<])(?:file:/*(?=/))?/(?!/)(?:[^\s/'\",:;()]+/)+")
"""Folders of an absolute path, also in `file:///a/b` and after a colon; not those of a URL."""
_LONGEST_REASON: Final = 400
_OF_EVERYONE: Final = ("root", "localhost")
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


def without_places(text: str) -> str:
    """A reason in one line, without the folders of paths and the user's and the host's name, and not too long."""
    text = _without_folders(" ".join(text.split()))
    for private, stands_for in ((socket.gethostname(), "HOST"), (_user(), "USER")):
        if len(private) > 2 and private not in _OF_EVERYONE:
            text = re.sub(rf"\b{re.escape(private)}\b", stands_for, text)
    return text if len(text) <= _LONGEST_REASON else f"... {text[-_LONGEST_REASON:]}"


def reasons_without_places(reasons: Mapping[str, str]) -> dict[str, str]:
    """Each reason as `without_places` has it."""
    return {name: without_places(reason) for name, reason in reasons.items()}


def shown_command(words: Sequence[str]) -> str:
    """A command line for the shell: files by their names, other machines as HOST."""
    return shlex.join(shown_word(word) for word in words)


def shown_word(word: str) -> str:
    """One word of a command line: a path without its folders, a URL without its machine."""
    option, separator, value = word.partition("=") if word.startswith("--") else ("", "", word)
    return f"{option}{separator}{shown_url(value) if '://' in value else _without_folders(value)}"


def shown_url(url: str) -> str:
    """A URL's scheme, with HOST in place of a machine that is not this one; a file's by its name."""
    place = urlsplit(url)
    if place.scheme == "file":
        return _without_folders(url)
    return url if place.hostname in _LOOPBACK else f"{place.scheme}://HOST"


def _without_folders(text: str) -> str:
    return _PATH.sub("", text)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user id without a name
        return os.environ.get("USER", "")
