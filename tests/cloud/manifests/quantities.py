"""Kubernetes' quantities as numbers."""

from decimal import Decimal

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def quantity(value: str | int) -> Decimal:
    """CPUs, or bytes: "500m" is 0.5, "1Gi" is 2**30. Raises ValueError for what is none."""
    text = str(value)
    number = text.rstrip("kMGTim")
    unit = text[len(number) :]
    if not number or (unit != "m" and unit not in _UNITS):
        raise ValueError(f"{value!r} is no quantity")
    return Decimal(number) / 1000 if unit == "m" else Decimal(number) * _UNITS[unit]
