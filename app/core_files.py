"""No core files: a process that crashes would write what is in its memory to the disk, prompts and keys included.

Knows nothing of what the process does.
"""

import resource


def leave_no_core_files() -> None:
    """From now on neither this process nor one that it starts leaves a core file, or can allow it again.

    A limit of 0 bytes would still let the kernel hand cores to a program, as many distributions have it. At 1 byte it
    does neither (core(5), RLIMIT_CORE).
    """
    _, most_bytes = resource.getrlimit(resource.RLIMIT_CORE)
    limit_bytes = 0 if most_bytes == 0 else 1
    resource.setrlimit(resource.RLIMIT_CORE, (limit_bytes, limit_bytes))
