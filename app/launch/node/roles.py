"""The choices of `redoubt node`'s command line; imports nothing, so that `--help` is quick."""

from enum import StrEnum


class Role(StrEnum):
    """What a node is in its cluster."""

    HEAD = "head"
    WORKER = "worker"


class Cores(StrEnum):
    """Whether a worker's node must have cores of its own."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"
