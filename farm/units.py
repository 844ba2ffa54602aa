"""Numbers with their units as words: the same in what a decision says and in every report."""

from __future__ import annotations

__all__ = ["mebibytes", "number"]


def number(value: float, unit: str = "", *, whole: bool = False) -> str:
    """Return ``value`` with its unit: three decimals for a ratio, one for seconds, MiB for bytes.

    ``whole`` says that the value counts something: an integral one is then written without decimals.
    """
    if unit == "bytes":
        return mebibytes(value)
    if unit == "s":
        return f"{value:.1f} s"
    if whole and value.is_integer():
        return f"{value:.0f}"
    readable = value == 0 or 1e-3 <= abs(value) < 1e4
    text = f"{value:.3f}" if readable else f"{value:.3g}"
    return f"{text} {unit}" if unit else text


def mebibytes(count: float | None) -> str:
    """Return bytes as MiB, or as they are below a tenth of one; "" for None."""
    if count is None:
        return ""
    return f"{count / 2**20:.1f} MiB" if abs(count) >= 2**20 / 10 else f"{count:.0f} bytes"
