"""Numbers as the page writes them. Knows no measurement."""

import math


def number(value: float, digits: int = 3) -> str:
    """Formats with `digits` significant digits, and commas between thousands: 0.0123, 1.23, 12.3, 1,234."""
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(0, decimals)}f}"


def milliseconds(value_s: float) -> str:
    """Seconds as milliseconds, without the unit."""
    return number(value_s * 1e3)


def megabytes(value_bytes: float) -> str:
    """Bytes as MB, without the unit."""
    return f"{value_bytes / 1e6:,.0f}"


def about(value_s: float) -> str:
    """How long something takes, for a person who waits."""
    if value_s < 90:
        return f"{max(5, round(value_s / 5) * 5)} seconds"
    return f"{round(value_s / 60)} minutes" if value_s < 5400 else f"{value_s / 3600:.1f} hours"
