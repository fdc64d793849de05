"""A small loss for each hook of metric-zoo, and a space: patterns to start from, not methods."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn


def contrast(likeness, labels):
    """Return how badly positives stand out from the negatives of their image, from (N, N)."""
    same = labels[:, None] == labels
    positive = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    logits = 16 * likeness
    negatives = logits.masked_fill(same, -1e4).logsumexp(1, keepdim=True)
    each = torch.where(positive, F.softplus(negatives - logits), 0)
    return each.sum() / positive.sum().clamp_min(1)


def cosines(embeddings):
    f = F.normalize(embeddings)
    return f @ f.T


class SteadyLoss(nn.Module):
    """Keep the embedding of an image near what it was when the image was seen last."""

    gallery = mined = False

    def __init__(self, num_images, embedding_size, weight: float = 0.1):
        super().__init__()
        self.weight = weight
        self.register_buffer("last", torch.zeros(num_images, embedding_size))

    def forward(self, embeddings, labels, image_ids):
        f = F.normalize(embeddings)
        before = self.last[image_ids]
        seen = before.any(1)
        if self.training:
            self.last[image_ids] = f.detach().to(self.last.dtype)
        moved = torch.where(seen, (f - before).square().sum(1), 0).mean()
        return contrast(cosines(embeddings), labels) + self.weight * moved


class SpreadLoss(nn.Module):
    """Give classes that are spread widely at the start of an epoch more weight in it."""

    gallery = mined = False

    def __init__(self, num_classes):
        super().__init__()
        self.register_buffer("spread", torch.ones(num_classes))

    def begin_epoch(self, epoch, labels, embed):
        f = F.normalize(embed())
        means = torch.zeros(len(self.spread), f.shape[1], device=f.device)
        means.index_add_(0, labels, f)
        counts = torch.bincount(labels, minlength=len(self.spread)).clamp_min(1)
        self.spread.copy_(1.5 - (means / counts[:, None]).norm(dim=1))

    def forward(self, embeddings, labels):
        f = F.normalize(embeddings)
        same = labels[:, None] == labels
        pull = torch.where(same, 1 - f @ f.T, 0).mean(1)
        return (self.spread[labels] * pull).mean() + contrast(f @ f.T, labels)


class NeighbourhoodLoss(nn.Module):
    """Draw batches from one region of the embedding, where classes are hard to tell apart."""

    gallery = mined = False

    def __init__(self, regions: int = 4):
        super().__init__()
        self.regions = regions

    def begin_epoch(self, epoch, labels, embed):
        f = F.normalize(embed())
        chosen = torch.randperm(len(f))[: self.regions].to(f.device)
        return (f @ f[chosen].T).argmax(1)

    def forward(self, embeddings, labels):
        return contrast(cosines(embeddings), labels)


class DifferentLoss(nn.Module):
    """Let all parts of an embedding learn the same, in different ways."""

    gallery = mined = False
    expected_failures: ClassVar = {
        "check_rotation": "the parts of an embedding are particular axes"
    }

    def __init__(self, level_sizes, weight: float = 0.1):
        super().__init__()
        self.level_sizes, self.weight = level_sizes, weight

    def forward(self, embeddings, labels):
        parts = [F.normalize(part) for part in embeddings.split(list(self.level_sizes), dim=1)]
        likeness = [part @ part.T for part in parts]
        alike = sum((a * b).mean() for i, a in enumerate(likeness) for b in likeness[:i])
        return sum(contrast(own, labels) for own in likeness) + self.weight * alike


class Reversed(torch.autograd.Function):
    """Pass numbers on, and their gradient with the opposite sign."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class CriticLoss(nn.Module):
    """Hide the length of an embedding from a critic that tries to tell it from the direction."""

    gallery = mined = False
    expected_failures: ClassVar = {
        "check_rotation": "the critic has weights for each axis",
        "check_gradcheck": "the gradient that reaches the embeddings from the critic is reversed",
    }

    def __init__(self, embedding_size):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(embedding_size, 16), nn.Tanh(), nn.Linear(16, 1))

    def parameter_groups(self):
        return [{"params": self.critic.parameters(), "lr_multiplier": 0.1}]

    def forward(self, embeddings, labels):
        embeddings = embeddings.to(self.critic[0].weight.dtype)
        f = F.normalize(embeddings)
        guess = self.critic(Reversed.apply(f)).squeeze(1)
        length = torch.log1p(embeddings.detach().norm(dim=1))
        return contrast(cosines(embeddings), labels) + 0.01 * F.smooth_l1_loss(guess, length)


class HellingerSpace:
    """Compare embeddings as probabilities, softmax(x), by sqrt(1 - sum_i sqrt(p_i q_i))."""

    def points(self, embeddings):
        return embeddings.softmax(1)

    def distances(self, a, b):
        return (1 - a.clamp_min(1e-12).sqrt() @ b.clamp_min(1e-12).sqrt().T).clamp_min(1e-12).sqrt()

    def query_vectors(self, points):
        return points.sqrt()

    def gallery_vectors(self, points):
        return points.sqrt()

    def distances_of(self, products, queries):
        return (1 - products).clamp_min(0).sqrt()


class HellingerLoss(nn.Module):
    """Bring positives near and negatives away in the space of the run."""

    gallery = mined = normalises = False
    spaces = ("hellinger",)
    expected_failures: ClassVar = {
        "check_rotation": "the entries of an embedding are probabilities",
        "check_large_gaps": "a softmax has no gradient where one entry is far above all others",
    }

    def __init__(self, space):
        super().__init__()
        self.space = space

    def forward(self, embeddings, labels):
        full = torch.promote_types(embeddings.dtype, torch.float32)
        with torch.autocast(embeddings.device.type, enabled=False):
            points = self.space.points(embeddings.to(full))
            return contrast(-4 * self.space.distances(points, points).square(), labels)
