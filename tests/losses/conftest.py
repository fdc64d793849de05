"""What the tests of all losses share."""

from __future__ import annotations

import pytest
import torch

from zoo import registry


@pytest.fixture
def build_loss():
    """Build any loss, by default for embeddings of four numbers and two classes."""

    def build(name, num_classes=2, embedding_size=4, **arguments):
        own = dict(registry.load("losses", name).check_arguments)  # those without a default
        levels = [embedding_size // 2, embedding_size - embedding_size // 2]
        sizes = {
            "num_classes": num_classes,
            "embedding_size": embedding_size,
            "level_sizes": levels,
            "space": None,
        }
        if any(p.required and p.name == "num_images" for p in registry.parameters("losses", name)):
            sizes["num_images"] = 256
        if wanted := getattr(registry.load("losses", name), "spaces", ()):
            sizes["space"] = registry.build("spaces", wanted[0])
        return registry.assemble("losses", name, own | arguments, sizes)

    return build


@pytest.fixture
def make_batch():
    """Make clustered raw embeddings in float64, in shuffled order, and their labels."""

    def make(sizes, dim=16, seed=0, spread=1.0, length=3.0):
        generator = torch.Generator().manual_seed(seed)
        labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        centres = torch.randn(len(sizes), dim, generator=generator, dtype=torch.float64)
        noise = torch.randn(len(labels), dim, generator=generator, dtype=torch.float64)
        order = torch.randperm(len(labels), generator=generator)
        return (centres[labels] + spread * noise)[order] * length, labels[order]

    return make


@pytest.fixture
def derive():
    """Return the value and the gradient of a function at x, detached."""

    def value_and_gradient(function, x):
        x = x.detach().clone().requires_grad_()
        value = function(x)
        (gradient,) = torch.autograd.grad(value, x)
        return value.detach(), gradient

    return value_and_gradient


@pytest.fixture
def same():
    """Compare two values with their gradients, absolutely."""

    def compare(one, other, tolerance):
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b, atol=tolerance, rtol=0)

    return compare
