"""A small loss for each hook of metric-zoo, samplers and a space: patterns to start from."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call


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


class FarPositivesSampler:
    """Draw classes at random, and of each an image and those that are farthest from it."""

    draws_late = True

    def __init__(self, labels, embed, classes: int, per_class: int, seed: int = 0):
        self.labels, self.embed, self.seed = np.asarray(labels), embed, seed
        self.classes, self.per_class = classes, per_class
        self.number = 0  # of the next batch

    def __len__(self):
        return max(1, len(self.labels) // (self.classes * self.per_class))

    def __iter__(self):
        while True:
            rng = np.random.default_rng([self.seed, self.number])
            batch = self.draw(self.pool(rng), rng)
            self.number += 1
            yield batch

    def pool(self, rng):
        """Return the images from which a batch is drawn."""
        return np.arange(len(self.labels))

    def draw(self, pool, rng):
        batch = []
        for label in rng.permutation(np.unique(self.labels[pool]))[: self.classes]:
            some = rng.permutation(pool[self.labels[pool] == label])[: 2 * self.per_class]
            f = self.embed(some.tolist())
            f = f / np.linalg.norm(f, axis=1, keepdims=True)
            farthest = 1 + np.argsort(f[1:] @ f[0], kind="stable")
            chosen = some[[0, *farthest]]
            batch += np.resize(chosen, self.per_class).tolist()  # repeats where there are few
        return batch

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]


class FarPositivesInGroupsSampler(FarPositivesSampler):
    """Draw each batch from one group of images, if the loss says which these are."""

    groups = None

    def regroup(self, groups):
        self.groups = groups

    def pool(self, rng):
        everything = super().pool(rng)
        if self.groups is None:
            return everything
        pool = everything[self.groups == rng.choice(self.groups)]
        return pool if len(np.unique(self.labels[pool])) > 1 else everything  # needs negatives

    def state_dict(self):
        groups = None if self.groups is None else torch.from_numpy(self.groups)
        return {**super().state_dict(), "groups": groups}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.groups = None if state["groups"] is None else state["groups"].numpy()


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


class RivalLoss(CriticLoss):
    """Hide the length from the critic too, but give each of the two an objective of its own."""

    expected_failures: ClassVar = {
        "check_rotation": "the critic has weights for each axis",
        "check_gradcheck": "the critic is trained for another objective than the embeddings",
    }

    def forward(self, embeddings, labels):
        of_critic = self.error(embeddings.detach(), self.critic)
        return self.of_embeddings(embeddings, labels) + of_critic - of_critic.detach()

    def of_embeddings(self, embeddings, labels):
        fixed = {name: p.detach() for name, p in self.critic.named_parameters()}
        error = self.error(embeddings, partial(functional_call, self.critic, fixed))
        return contrast(cosines(embeddings), labels) - error

    def error(self, embeddings, critic):
        x = embeddings.to(self.critic[0].weight.dtype)
        guess = critic(F.normalize(x)).squeeze(1)
        return 0.01 * F.smooth_l1_loss(guess, torch.log1p(x.detach().norm(dim=1)))

    def reference_gradient(self, embeddings, labels):
        self.double()
        x = embeddings.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.of_embeddings(x, labels), x)
        return gradient


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
