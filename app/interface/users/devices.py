"""The device of a login, in a few words: "Firefox on Linux". Nothing more of a client's `User-Agent` is kept."""

import re

_BROWSERS = (
    (r"Edg(?:e|A|iOS)?/", "Edge"),
    (r"OPR/|OPT/", "Opera"),
    (r"SamsungBrowser/", "Samsung Internet"),
    (r"Firefox/|FxiOS/", "Firefox"),
    (r"Chrome/|CriOS/|Chromium/", "Chrome"),
    (r"Version/[\d.]+.* Safari/", "Safari"),
)
"""The first that is found: most browsers name older ones too."""
_SYSTEMS = (
    (r"iPhone", "iPhone"),
    (r"iPad", "iPad"),
    (r"Android", "Android"),
    (r"CrOS", "ChromeOS"),
    (r"Windows", "Windows"),
    (r"Macintosh|Mac OS X", "macOS"),
    (r"Linux|X11", "Linux"),
)
_PROGRAM = re.compile(r"[A-Za-z][\w.-]{0,39}", re.ASCII)


def device_of(user_agent: str) -> str | None:
    """Returns browser and system, or the program's name; None if it says neither."""
    browser = _first(_BROWSERS, user_agent)
    system = _first(_SYSTEMS, user_agent)
    if browser is not None:
        return browser if system is None else f"{browser} on {system}"
    program = _PROGRAM.match(user_agent)
    if program is None or user_agent.startswith("Mozilla/"):
        return system
    return program[0]


def _first(names: tuple[tuple[str, str], ...], user_agent: str) -> str | None:
    return next((name for pattern, name in names if re.search(pattern, user_agent)), None)
