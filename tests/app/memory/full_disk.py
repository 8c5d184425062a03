"""Writes pages to a disk until it is full, and on: FOLDER, where a small file system is mounted."""

import errno
import sys
from pathlib import Path

from tests.app.memory.pages import contents_of, id_of, open_folder, read, write


def main() -> None:
    """Prints what happened; exits with 1 where a page is wrong or writing never goes on."""
    folder = open_folder(Path(sys.argv[1]))
    refused = written = 0
    for number in range(400):
        page_id = id_of("ada", f"text {number}")
        try:
            write(folder, page_id)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            refused += 1
            continue
        written += bool(refused)
        if read(folder, page_id) != contents_of(page_id):
            sys.exit(f"page {number} is wrong")
    if not refused or not written:
        sys.exit(f"{refused} writes were refused, {written} succeeded after that")
    print(f"full, and went on: {refused} writes refused, {written} after the first of them")


if __name__ == "__main__":
    main()
