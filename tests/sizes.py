"""How many cases of one kind the tests try: `make test` has each kind once, `make conformance` has more.

Knows nothing of what is tried.
"""

import os

FULL = bool(os.environ.get("REDOUBT_TEST_FULL"))
"""Whether to try all of it."""
