import copy

import pytest
import torch
from torch import nn

import zoo
from zoo.errors import UserError
from zoo.models.abe import AttentionEnsemble
from zoo.models.convnet import ConvNet
from zoo.network.embedder import Embedder


def build(seed=0, **arguments):
    torch.manual_seed(seed)
    return AttentionEnsemble(ConvNet(width=2), **{"learners": 3, "at": "blocks.1", **arguments})


IMAGES = torch.randn(4, 1, 32, 32, generator=torch.Generator().manual_seed(0))


def test_each_learner_is_the_rest_of_the_network_on_a_masked_map():
    net = build(size=5).eval()
    blocks, masked = net.backbone.blocks, net.backbone.blocks[1]
    features = masked.module(blocks[0](IMAGES))
    hidden = torch.einsum("oc,nchw->nohw", masked.shared.weight[:, :, 0, 0], features)
    hidden = (hidden + masked.shared.bias[:, None, None]).clamp_min(0)
    levels = net(IMAGES)
    assert net.feature_dims == (5, 5, 5)
    for m, level in enumerate(levels):
        rows = slice(4 * m, 4 * m + 4)  # the channels of the map
        mask = torch.einsum("oc,nchw->nohw", masked.own.weight[rows, :, 0, 0], hidden)
        mask = torch.sigmoid(mask + masked.own.bias[rows, None, None])
        assert mask.shape == features.shape
        rest = blocks[3](blocks[2](features * mask)).mean((2, 3))
        torch.testing.assert_close(level, net.project(rest))
    assert not torch.allclose(levels[0], levels[1])


def test_without_a_place_the_last_map_is_masked():
    net = build(at=None).eval()
    plain = ConvNet(width=2).eval()
    plain.load_state_dict(net.backbone.state_dict())
    (features,) = plain(IMAGES)
    levels = net(IMAGES)
    assert net.feature_dims == (16, 16, 16)
    for level in levels:
        assert level.shape == features.shape
        assert ((level >= 0) & (level <= features)).all()  # features are not negative


def test_learners_with_equal_masks_are_equal():
    net = build(size=5).eval()
    masked = net.backbone.blocks[1]
    with torch.no_grad():
        masked.own.weight.copy_(masked.own.weight[:4].repeat(3, 1, 1, 1))
        masked.own.bias.copy_(masked.own.bias[:4].repeat(3))
    one, *others = net(IMAGES)
    for other in others:
        torch.testing.assert_close(one, other)


def test_every_parameter_gets_a_gradient():
    net = build(size=5)
    sum(level.square().sum() for level in net(IMAGES)).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())


def test_it_is_a_backbone_of_several_levels():
    torch.manual_seed(0)
    backbone = zoo.build(
        "backbones", "abe", backbone={"name": "convnet", "width": 2}, learners=2, size=6
    )
    embedder = Embedder(backbone, None).eval()
    assert embedder.level_sizes == [6, 6]
    images = torch.randint(0, 256, (3, 1, 32, 32), dtype=torch.uint8)
    embeddings = embedder(images)
    assert embeddings.shape == (3, 12)
    torch.testing.assert_close(copy.deepcopy(embedder)(images), embeddings)


def test_looking_for_the_channels_changes_nothing():
    torch.manual_seed(0)
    plain = ConvNet(width=2)
    wanted = copy.deepcopy(plain.state_dict())
    net = AttentionEnsemble(plain, learners=2, at="blocks.2")
    assert net.training
    assert net.backbone.blocks[0][1].training
    kept = {k.replace("2.module.", "2."): v for k, v in net.backbone.state_dict().items()}
    for name, value in wanted.items():
        assert torch.equal(kept[name], value)


class Vectors(nn.Module):
    preprocess = ConvNet.preprocess
    feature_dims = (3,)

    def forward(self, images):
        return (images.mean((2, 3)).expand(-1, 3),)


class Levels(Vectors):
    feature_dims = (3, 3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"learners": 0}, "learners=0 and size=None must be 1 or more"),
        ({"size": 0}, "must be 1 or more"),
        ({"at": "blocks.9"}, "no module 'blocks.9'; it has blocks, blocks.0"),
    ],
)
def test_impossible_arguments(arguments, says):
    with pytest.raises(UserError, match=says):
        build(**arguments)


def test_backbones_without_one_map():
    with pytest.raises(UserError, match="must have one level, not 2"):
        AttentionEnsemble(Levels())
    with pytest.raises(UserError, match="gives no map to mask"):
        AttentionEnsemble(Vectors())(IMAGES)


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("blocks", "abe: the backbone cannot do with a mask on 'blocks'"),
        ("", "abe: at must be the path of a module, or null"),
        ("nothing", "abe: the backbone has no module 'nothing'"),
    ],
)
def test_what_cannot_be_masked(at, said):
    with pytest.raises(UserError) as error:
        zoo.build("backbones", "abe", backbone={"name": "convnet", "width": 2}, at=at)
    assert said in str(error.value)
