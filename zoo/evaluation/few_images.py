"""The warning about NMI: k-means makes no good clusters if classes have few images."""

from __future__ import annotations

_FEW = 10  # images per class on average; SOP, about which the paper warns, has 5.3


def warning(images: int | None, classes: int | None) -> str | None:
    """Return a warning about NMI and AMI on a data set of that size; None if it is large enough."""
    if not images or not classes or images / classes >= _FEW:
        return None
    mean = images / classes
    return (
        f"NMI and AMI: classes have only {mean:.1f} images on average, too few for good clusters "
        "by k-means; on such data (SOP), prefer MAP@R"
    )
