"""Asks a cluster's head whether it answers and takes this node's token; a program of its own.

python -m app.launch.node.head_probe HOST:PORT

Prints the error in a line and exits with 1, or exits with 0. Ray's GCS client waits long and may end the process when
it fails, so it must not run in the node's own process.
"""

import sys

from app.ray_internals import gcs_refusal


def main() -> int:
    """Returns the exit status."""
    if (refusal := gcs_refusal(sys.argv[1])) is None:
        return 0
    print(refusal)
    return 1


if __name__ == "__main__":
    sys.exit(main())
