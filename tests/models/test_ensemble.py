import pytest
import torch

import zoo
from zoo.errors import UserError
from zoo.models.bn_inception import BNInception
from zoo.models.convnet import ConvNet
from zoo.models.ensemble import Ensemble
from zoo.network.embedder import Embedder

IMAGES = torch.randn(3, 1, 32, 32, generator=torch.Generator().manual_seed(0))


def test_it_gives_the_levels_of_its_networks():
    a, b = ConvNet(width=2).eval(), ConvNet(width=3, blocks=2).eval()
    net = Ensemble([a, b])
    assert net.feature_dims == (16, 6)
    levels = net.eval()(IMAGES)
    assert torch.equal(levels[0], a(IMAGES)[0])
    assert torch.equal(levels[1], b(IMAGES)[0])


def test_those_of_a_list_start_differently_and_copies_alike():
    spec = {"name": "convnet", "width": 2}
    listed = zoo.build("backbones", "ensemble", backbones=[spec, spec]).eval()(IMAGES)
    assert not torch.equal(*listed)
    net = zoo.build("backbones", "ensemble", backbones=[spec], copies=3).eval()
    one, two, three = net(IMAGES)
    assert torch.equal(one, two)
    assert torch.equal(one, three)
    with torch.no_grad():
        next(net.backbones[1].parameters()).add_(1)
    assert not torch.equal(net(IMAGES)[0], net(IMAGES)[1])


def test_the_loss_of_a_level_trains_only_its_network():
    net = Ensemble([ConvNet(width=2), ConvNet(width=2)])
    net(IMAGES)[1].square().sum().backward()
    assert all(p.grad is None for p in net.backbones[0].parameters())
    assert all(p.grad.abs().sum() > 0 for p in net.backbones[1].parameters())


def test_networks_of_several_levels():
    net = Ensemble([BNInception(levels="LM")], copies=2)
    assert len(net.feature_dims) == 4
    embedder = Embedder(net, 8)
    assert embedder.level_sizes == [8, 8, 8, 8]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"backbones": []}, "give one or more backbones and copies of 1 or more, not 0 and 1"),
        ({"backbones": ["convnet"], "copies": 0}, "not 1 and 0"),
        ({"backbones": ["convnet", "bn_inception"]}, "must want the same input, and one wants"),
    ],
)
def test_what_cannot_be_an_ensemble(arguments, says):
    kinds = {"convnet": ConvNet, "bn_inception": BNInception}
    built = [kinds[name]() for name in arguments["backbones"]]
    with pytest.raises(UserError, match=says):
        Ensemble(**{**arguments, "backbones": built})
