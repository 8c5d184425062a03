"""Stands in for a Ray agent that nobody would use: it serves nothing, and ends with the raylet.

A program of its own, in 9 MB: it imports nothing of `app` or Ray. Arguments: --session-dir=FOLDER --node-id=ID, and the
names of the ports that the agent would serve. The raylet reads those from files; -1 says that there is no such service.
"""

import os
import sys
import time

_LOOK_S = 1.0


def main(arguments: list[str]) -> None:
    """Runs until the parent process ends."""
    raylet = os.getppid()
    options = dict(one.split("=", 1) for one in arguments if "=" in one)  # the raylet adds some of its own
    for name in arguments:
        if not name.startswith("--"):
            path = f"{options['--session-dir']}/{name}_{options['--node-id']}"
            with open(path + ".new", "w") as file:  # noqa: PTH123  # importing pathlib would double this process
                file.write("-1")
            os.replace(path + ".new", path)  # noqa: PTH105
    while os.getppid() == raylet:
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    main(sys.argv[1:])
