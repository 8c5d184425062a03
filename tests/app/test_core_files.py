import subprocess
import sys
from pathlib import Path

import pytest

CRASH = """
import os, resource, sys
from app.core_files import leave_no_core_files

def leaves_core():
    pid = os.fork()
    if not pid:
        os.abort()
    return os.WCOREDUMP(os.waitpid(pid, 0)[1])

most_bytes = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (most_bytes, most_bytes))
before = leaves_core()
leave_no_core_files()
leave_no_core_files()
print(before, leaves_core(), *resource.getrlimit(resource.RLIMIT_CORE))
"""


def test_a_process_that_crashes_leaves_no_core_file(tmp_path: Path) -> None:
    told = subprocess.run([sys.executable, "-c", CRASH], cwd=tmp_path, capture_output=True, text=True, check=True)
    before, after, soft, hard = told.stdout.split()
    assert after == "False"
    assert (soft, hard) in (("1", "1"), ("0", "0"))
    if before == "False":
        pytest.skip("nothing leaves a core file on this machine")
