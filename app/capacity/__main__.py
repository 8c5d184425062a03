"""`python -m app.capacity`: answers an ingress' question; both are JSON, on standard input and output.

A process of its own at a low priority, because the simulation takes seconds that an ingress does not have.
"""

import json
import os
import sys

from app.capacity.service import answer

if __name__ == "__main__":
    os.nice(5)
    json.dump(answer(json.load(sys.stdin)), sys.stdout)
