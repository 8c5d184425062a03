"""The mark as another process sees it."""

import signal
import subprocess
import sys
from pathlib import Path

from app.running_mark import RunningMark, is_marked

MARKED = """
import sys, time
from pathlib import Path
from app.running_mark import RunningMark
RunningMark(Path(sys.argv[1])).set(True)
print("marked", flush=True)
time.sleep(60)
"""


def test_it_is_seen_until_it_is_taken_away_or_its_process_is_killed(tmp_path: Path) -> None:
    mark = RunningMark(tmp_path)
    assert not is_marked(tmp_path)
    for runs in (True, True, False, False, True, False):
        mark.set(runs)
        assert is_marked(tmp_path) == runs
    with subprocess.Popen([sys.executable, "-c", MARKED, tmp_path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"marked\n"
        assert is_marked(tmp_path)
        process.send_signal(signal.SIGKILL)
    assert not is_marked(tmp_path)
