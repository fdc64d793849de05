"""Center loss against loops, with the gradient of its centres."""

from __future__ import annotations

import pytest
import torch


def loops(x, labels, loss, centers, lam):
    terms = []
    for row, y in zip(x, labels.tolist(), strict=True):
        logits = loss.classifier.weight.detach() @ row + loss.classifier.bias.detach()
        terms.append(-logits[y] + torch.log(sum(map(torch.exp, logits))))
        terms[-1] = terms[-1] + lam / 2 * sum((row - centers[y]) ** 2)
    return sum(terms) / len(terms)


@pytest.mark.parametrize("lam", [0.0, 0.003, 1.0])
def test_equals_the_loops(build_loss, make_batch, derive, same, lam):
    x, labels = make_batch([3, 1, 4], dim=8)
    loss = build_loss("center", num_classes=5, embedding_size=8, weight=lam).double()
    loss.centers.data.normal_(generator=torch.Generator().manual_seed(0))
    centers = loss.centers.detach().clone()
    found = derive(lambda z: loss(z, labels), x)
    same(found, derive(lambda z: loops(z, labels, loss, centers, lam), x), 1e-12)
    loss(x, labels).backward()
    _, wanted = derive(lambda c: loops(x, labels, loss, c, lam), centers)
    torch.testing.assert_close(loss.centers.grad, wanted)


def test_a_centre_goes_to_the_mean_of_its_images(build_loss, make_batch):
    x, labels = make_batch([4, 4])
    loss = build_loss("center", embedding_size=16, weight=1.0).double()
    optimizer = torch.optim.SGD([loss.centers], lr=1.0)
    for _ in range(100):
        optimizer.zero_grad()
        loss(x, labels).backward()
        optimizer.step()
    torch.testing.assert_close(loss.centers.detach()[1], x[labels == 1].mean(0))
