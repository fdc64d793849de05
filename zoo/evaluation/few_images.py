"""The warning that NMI comes with: of few images k-means makes no good clusters."""

from __future__ import annotations

_FEW = 10  # images of a class on average; SOP, which the paper warns of, has 5.3


def warning(images: int | None, classes: int | None) -> str | None:
    """Return what is to be said of NMI and AMI on such a data set; None if nothing is."""
    if not images or not classes or images / classes >= _FEW:
        return None
    mean = images / classes
    return (
        f"NMI and AMI: a class has {mean:.1f} images on average, of which k-means makes no good "
        "clusters; on such data (SOP) they assess an embedding badly, MAP@R does not"
    )
