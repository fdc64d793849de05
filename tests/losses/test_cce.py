"""Cross entropy against loops."""

from __future__ import annotations

import math

import pytest
import torch

from zoo import UserError


def test_equals_the_loops(build_loss, make_batch, derive, same):
    x, labels = make_batch([3, 1, 4], dim=8)
    loss = build_loss("cce", num_classes=5, embedding_size=8).double()
    weight, bias = loss.classifier.weight.detach(), loss.classifier.bias.detach().normal_()

    def loops(z):
        terms = []
        for row, y in zip(z, labels.tolist(), strict=True):
            logits = [row @ weight[c] + bias[c] for c in range(5)]
            terms.append(-logits[y] + torch.log(sum(map(torch.exp, logits))))
        return sum(terms) / len(terms)

    same(derive(lambda z: loss(z, labels), x), derive(loops, x), 1e-13)


def test_it_starts_at_log_c(build_loss, make_batch):
    x, _ = make_batch([64], dim=32, length=1.0)
    labels = torch.arange(64) % 50
    loss = build_loss("cce", num_classes=11_318, embedding_size=32)
    assert float(loss(x.float(), labels)) == pytest.approx(math.log(11_318), rel=0.01)


def test_weights_follow_the_precision_of_the_embeddings(build_loss, make_batch):
    x, labels = make_batch([2, 2], dim=4)
    loss = build_loss("cce")
    assert loss(x, labels).dtype == torch.float64
    assert loss.bfloat16()(x.bfloat16(), labels).dtype == torch.float32


@pytest.mark.parametrize("name", ["cce", "proxy_nca"])
@pytest.mark.parametrize("label", [-1, 2])
def test_labels_without_weights(build_loss, name, label):
    with pytest.raises(
        UserError, match=f"from {min(0, label)} to {max(0, label)}, but .* 2 classes"
    ):
        build_loss(name)(torch.ones(2, 4), torch.tensor([0, label]))
