"""The parts of docs/parts.md: a miner, a sampler, a backbone, a data set and a tracker."""

import hashlib
import itertools
import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, UnidentifiedImageError
from torch import nn

from zoo import UserError
from zoo.base import Preprocess


class NearestNegativesMiner(nn.Module):
    """Take all positives of an anchor, and as many of its nearest negatives."""

    def forward(self, embeddings, labels):
        f = F.normalize(embeddings.float())
        same = labels[:, None] == labels
        positive = same.clone().fill_diagonal_(False)
        cosines = (f @ f.T).masked_fill(same, -torch.inf)
        place = cosines.argsort(dim=1, descending=True).argsort(dim=1)
        negative = (place < positive.sum(1, keepdim=True)) & ~same
        return (*positive.nonzero(as_tuple=True), *negative.nonzero(as_tuple=True))


class RoundsSampler:
    """Go through the classes in random order; of each, draw ``per_class`` images."""

    def __init__(self, labels, classes: int, per_class: int, seed: int = 0):
        labels = np.asarray(labels)
        self.images = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        if not 1 <= classes <= len(self.images):
            raise UserError(
                f"sampler.classes is {classes}; it must be from 1 to {len(self.images)}"
            )
        if per_class < 1:
            raise UserError(f"sampler.per_class is {per_class}; it must be 1 or more")
        self.classes, self.per_class, self.seed = classes, per_class, seed
        self.batch_size = classes * per_class
        self.number = 0  # of the next batch

    def __len__(self):
        return len(self.images) // self.classes

    def __iter__(self):
        while True:
            epoch, place = divmod(self.number, len(self))
            order = np.random.default_rng([self.seed, epoch]).permutation(len(self.images))
            rng = np.random.default_rng([self.seed, epoch, place])
            batch = []
            for i in order[place * self.classes : (place + 1) * self.classes]:
                drawn = rng.permutation(self.images[i])
                batch += np.resize(drawn, self.per_class).tolist()  # repeats where there are few
            self.number += 1
            yield batch

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]


class StridedNet(nn.Module):
    """Convolutions of stride 2 with group normalisation; gray images become one feature map."""

    preprocess = Preprocess(channels="L", scale=1.0, mean=(0.5,), std=(0.5,))

    def __init__(self, width: int = 32, depth: int = 3):
        super().__init__()
        sizes = [1, *(width * 2**i for i in range(depth))]
        layers = []
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Conv2d(before, after, 3, 2, 1), nn.GroupNorm(4, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.feature_dims = (sizes[-1],)

    def forward(self, images):
        return (self.layers(images),)


class ByFileName:
    """Images of one folder, named after their classes: ``heron_12.jpg`` is a heron.

    The first half of the classes, by name, is for training.
    """

    def __init__(self, root: str, split: str):
        self.root, self.split = Path(root).expanduser(), split
        if not self.root.is_dir():
            raise UserError(f"{self.root}: there is no such folder")
        files = sorted(self.root.glob("*_*.jpg"))
        names = sorted({self.class_of(file) for file in files})
        if len(names) < 4:
            raise UserError(f"{self.root}: {len(names)} classes; needs 4 or more, as class_1.jpg")
        half = len(names) // 2
        self.class_names = names[:half] if split == "train" else names[half:]
        self.files = [file for file in files if self.class_of(file) in self.class_names]
        self.labels = np.array([self.class_names.index(self.class_of(f)) for f in self.files])

    @staticmethod
    def class_of(file):
        return file.stem.rpartition("_")[0]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        with Image.open(self.files[index]) as image:
            return image.convert("RGB"), int(self.labels[index])

    def fingerprint(self):
        """Return a digest of the names and sizes of the files."""
        seen = [self.split, *((file.name, file.stat().st_size) for file in self.files)]
        return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]

    def verify(self):
        """Return a line for each file that is no image."""
        problems = []
        for file in self.files:
            try:
                with Image.open(file) as image:
                    image.load()
            except (OSError, UnidentifiedImageError) as error:
                problems.append(f"{file.name}: {error}")
        return problems


class BestSoFarTracker:
    """Keep the best value of each number, with its iteration, in ``best.json`` of the run."""

    def __init__(self, run_folder):
        self.path = Path(run_folder) / "best.json"
        self.best = {}

    def begin(self, iteration):
        if iteration and self.path.exists():
            found = json.loads(self.path.read_text())
            self.best = {name: (v, at) for name, (v, at) in found.items() if at <= iteration}

    def log(self, iteration, values):
        for name, value in values.items():
            better = min if name.startswith("loss") else max
            before = self.best.get(name, (value, iteration))
            self.best[name] = better(before, (value, iteration), key=lambda pair: pair[0])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.best))

    def end(self, finished):
        pass
