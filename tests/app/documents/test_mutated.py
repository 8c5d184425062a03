"""Damaged files of each kind: whatever is in them, the reader answers with text or with a sentence."""

import json
import subprocess
import sys
import zlib

import pytest

from tests.app.documents.files import BASES, mutated
from tests.sizes import FULL

COUNT = 200 if FULL else 40
MEMORY_BYTES, SECONDS = 1 << 30, 60
PROGRAM = """
import json, struct, sys
from app.documents import mail, pdf, sheets, slides, web, word, opendocument
from app.documents import child
child.bound(int(sys.argv[2]), int(sys.argv[3]))
child.seal()
child.seal = lambda: True  # once is enough, and a second time is refused
while head := sys.stdin.buffer.read(4):
    data = sys.stdin.buffer.read(struct.unpack("<I", head)[0])
    print(json.dumps(child.answer(sys.argv[1], data)), flush=True)
"""


@pytest.mark.parametrize("name", BASES)
def test_no_damaged_file_stops_the_reader(name: str) -> None:
    files = list(mutated(BASES[name], COUNT, zlib.crc32(name.encode())))
    answers: list[dict[str, object] | None] = []
    while len(answers) < COUNT:  # again after a file that ends the process, as a library of C may
        given = b"".join(len(data).to_bytes(4, "little") + data for data in files[len(answers) :])
        command = [sys.executable, "-c", PROGRAM, name, str(SECONDS), str(MEMORY_BYTES)]
        run = subprocess.run(command, input=given, capture_output=True, timeout=4 * SECONDS)
        answers += map(json.loads, run.stdout.splitlines())
        if len(answers) < COUNT:
            assert run.returncode in (-4, -5, -6, -11), run.stderr.decode()  # neither its time nor a bug of ours
            answers.append(None)
    assert len(answers) == COUNT
    read = [one for one in answers if one is not None and "sections" in one]
    refused = [str(one["refusal"]) for one in answers if one is not None and "refusal" in one]
    print(name, len(read), "read", len(refused), "refused", answers.count(None), "ended the process", set(refused))
    assert answers.count(None) <= 2
    assert len(read) + len(refused) + answers.count(None) == COUNT
    assert read
    assert not any("/" in reason or "\\n" in reason or "None" in reason for reason in refused)
