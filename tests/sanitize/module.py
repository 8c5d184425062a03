"""A plugin of pytest: `kernels._native` is the module in the folder that REDOUBT_SANITIZED_MODULE names.

Loaded by `-p tests.sanitize.module`, before any test is, in every worker of xdist. Processes that tests start have the
module that serves.
"""

import os
from pathlib import Path

import kernels

_FOLDER = Path(os.environ["REDOUBT_SANITIZED_MODULE"])
kernels.__path__.insert(0, str(_FOLDER))

from kernels import _native  # noqa: E402 - its folder had to be named first

assert _native.__file__ is not None
assert Path(_native.__file__).parent == _FOLDER, _native.__file__
