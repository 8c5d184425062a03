"""Asks a cluster's head whether it answers and takes this node's token; a program of its own.

    python -m app.launch.node.head_probe HOST:PORT

Prints a line that says what is wrong and exits with 1, or exits with 0. Ray's client of the GCS waits long, and may end
the process when it fails: so this is not done in the node's own process.
"""

import sys

from app.ray_internals import gcs_refusal


def main() -> int:
    """The exit status."""
    if (refusal := gcs_refusal(sys.argv[1])) is None:
        return 0
    print(refusal)
    return 1


if __name__ == "__main__":
    sys.exit(main())
