"""How much of the same the tests try: in `make conformance` more than in `make test`, which has every kind once.

Knows nothing of what is tried.
"""

import os

FULL = bool(os.environ.get("REDOUBT_TEST_FULL"))
"""Whether to try all of it."""
