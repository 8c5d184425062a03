"""The choices of `redoubt node`'s command line; imports nothing, so that `--help` is quick."""

from enum import StrEnum


class Role(StrEnum):
    """A node's role in its cluster."""

    HEAD = "head"
    WORKER = "worker"


class Cores(StrEnum):
    """Whether a worker's node needs exclusive cores."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"
