"""`python -m app.capacity`: a question of an ingress as JSON on the standard input, the answer on the standard output.

A process of its own, at a low priority, because the simulation takes seconds that an ingress does not have.
"""

import json
import os
import sys

from app.capacity.service import answer

if __name__ == "__main__":
    os.nice(5)
    json.dump(answer(json.load(sys.stdin)), sys.stdout)
