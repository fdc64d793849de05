"""DREML against loops; its draw of meta-classes; and its limits, CCE and a fixed classifier."""

from __future__ import annotations

import math

import pytest
import torch

from zoo import UserError
from zoo.registry import assemble

SIZES = [3, 5, 4]


def build(level_sizes=SIZES, num_classes=10, **arguments):
    sizes = {"level_sizes": list(level_sizes), "num_classes": num_classes}
    torch.manual_seed(0)
    return assemble("losses", "dreml", {"meta_classes": 4, **arguments}, sizes).double()


def batch(n=7, size=12, classes=10):
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, classes, (n,), generator=generator)
    return torch.randn(n, size, generator=generator, dtype=torch.float64), labels


def loops(loss, x, labels, sizes=SIZES):
    total = 0
    for m, part in enumerate(x.split(list(sizes), 1)):
        weight, bias = loss.classifiers[m].parameters()
        for f, label in zip(part, labels.tolist(), strict=True):
            scores = [w @ f + b for w, b in zip(weight, bias, strict=True)]
            wanted = scores[int(loss.meta[m, label])]
            total = total + (torch.stack(scores).exp().sum().log() - wanted) / len(labels)
    return total


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("meta_classes", [1, 4, 10, 12])
def test_value_and_gradient_equal_the_loops(derive, same, n, meta_classes):
    x, labels = batch(n)
    loss = build(meta_classes=meta_classes)
    wanted = derive(lambda z: loops(loss, z, labels), x)
    same(derive(lambda z: loss(z, labels), x), wanted, 1e-12)
    assert (wanted[1].abs().max() > 1e-3) == (meta_classes > 1)


def test_the_weights_have_the_gradient_of_the_loops():
    x, labels = batch()
    loss = build()
    found = torch.autograd.grad(loss(x, labels), list(loss.parameters()))
    wanted = torch.autograd.grad(loops(loss, x, labels), list(loss.parameters()))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("num_classes", [7, 12, 1162])
@pytest.mark.parametrize("meta_classes", [1, 5, 12, 48])
def test_meta_classes_are_of_equal_size_up_to_one(num_classes, meta_classes):
    meta = build(num_classes=num_classes, meta_classes=meta_classes).meta
    for of_learner in meta:
        counts = of_learner.bincount()
        assert len(counts) == min(meta_classes, num_classes)
        assert counts.max() - counts.min() <= 1


def test_the_draw_is_from_the_seed_alone_and_differs_between_learners():
    torch.manual_seed(5)
    meta = build().meta
    torch.manual_seed(6)
    assert torch.equal(build().meta, meta)
    assert not torch.equal(build(seed=1).meta, meta)
    assert not torch.equal(meta[0], meta[1])
    restored = build(seed=1)
    restored.load_state_dict(build().state_dict())
    assert torch.equal(restored.meta, meta)


def test_two_classes_are_together_as_often_as_the_draw_says():
    """In M meta-classes of n classes, two are together with probability (n - 1) / (M n - 1)."""
    meta = build([1] * 1500, num_classes=12, meta_classes=3).meta
    together = float((meta[:, 0] == meta[:, 7]).double().mean())
    assert together == pytest.approx(3 / 11, abs=0.04)


def test_as_many_meta_classes_as_classes_is_cross_entropy_with_renamed_classes(build_loss):
    x, labels = batch()
    loss = build([12], meta_classes=99)
    cce = build_loss("cce", num_classes=10, embedding_size=12).double()
    with torch.no_grad():
        for mine, theirs in zip(
            loss.classifiers[0].parameters(), cce.classifier.parameters(), strict=True
        ):
            theirs.copy_(mine[loss.meta[0]])
    torch.testing.assert_close(loss(x, labels), cce(x, labels))


def test_a_fixed_classifier_takes_the_embedding_as_scores():
    x, labels = batch()
    loss = build([4, 4, 4], static=True)
    assert not list(loss.parameters())
    learned = build([4, 4, 4])
    with torch.no_grad():
        for classifier in learned.classifiers:
            classifier.weight.copy_(torch.eye(4))
            classifier.bias.zero_()
    torch.testing.assert_close(loss(x, labels), learned(x, labels))
    assert float(loss(torch.zeros(2, 12).double(), labels[:2])) == pytest.approx(3 * math.log(4))


def test_labels_without_a_meta_class_are_refused():
    x, _ = batch(2)
    with pytest.raises(UserError, match="weights for 10 classes"):
        build()(x, torch.tensor([0, 10]))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"meta_classes": 0}, "meta_classes must be at least 1"),
        ({"static": True}, "need learners of 4 numbers, one for each meta-class; the levels have"),
    ],
)
def test_impossible_arguments(arguments, says):
    with pytest.raises(UserError, match=says):
        build(**arguments)
