"""The splits of a config's data set: built, checked, decoded once."""

from __future__ import annotations

from collections.abc import Sequence

from zoo.base import ImageDataset, Split
from zoo.config.build import build, refuse
from zoo.config.schema import Config
from zoo.data.cache import decoded_once
from zoo.errors import UserError, blaming
from zoo.progress import Reporter
from zoo.registry import contracts


def decoded(
    config: Config, datasets: Sequence[ImageDataset], reporter: Reporter
) -> Sequence[ImageDataset]:
    """Return data sets, with their images decoded once and cached if the config says so."""
    side = config.images.resize
    if not config.images.cache or side is None:
        return datasets
    return decoded_once(datasets, side, workers=config.train.workers, reporter=reporter)


def build_dataset(config: Config, split: Split) -> ImageDataset:
    """Return a split of a config's data set; raise a UserError if it is empty."""
    dataset: ImageDataset = build("datasets", config.dataset, {"split": split})
    with blaming(f"{config.dataset.name}, asked for its {split} split,"):
        refuse(config.dataset, contracts.dataset(dataset), f"the {split} split ")
        empty = not len(dataset)
    if empty:
        raise UserError(f"{config.dataset.name}: the {split} split has no images")
    return dataset


def fingerprint(config: Config, dataset: ImageDataset) -> str:
    """Return the fingerprint of a split; raise a UserError if it is not valid."""
    with blaming(f"the fingerprint of {config.dataset.name}"):
        found: str = dataset.fingerprint()
    refuse(config.dataset, contracts.fingerprint(found))
    return found
