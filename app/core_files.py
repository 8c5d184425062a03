"""Disables core files: a crashing process would write its memory to disk, prompts and keys included.

Knows nothing of what the process does.
"""

import resource


def leave_no_core_files() -> None:
    """Makes this process and its children leave no core file, irrevocably.

    A limit of 0 bytes would still let the kernel hand cores to a program, as many distributions have it. At 1 byte it
    does neither (core(5), RLIMIT_CORE).
    """
    _, most_bytes = resource.getrlimit(resource.RLIMIT_CORE)
    limit_bytes = 0 if most_bytes == 0 else 1
    resource.setrlimit(resource.RLIMIT_CORE, (limit_bytes, limit_bytes))
