import pytest
import torch

from zoo.errors import UserError
from zoo.models.convnet import ConvNet


@pytest.mark.parametrize(("width", "blocks", "size"), [(16, 4, 32), (8, 2, 20), (1, 1, 2)])
def test_gives_one_map_of_the_promised_width(width, blocks, size):
    net = ConvNet(width=width, blocks=blocks)
    (level,) = net(torch.randn(2, 1, size, size))
    side = size // 2**blocks
    assert level.shape == (2, *net.feature_dims, side, side)
    assert net.feature_dims == (width * 2 ** (blocks - 1),)


def test_wants_one_gray_plane():
    assert ConvNet().preprocess.channels == "L"


def test_every_parameter_gets_a_gradient():
    net = ConvNet()
    net(torch.randn(4, 1, 32, 32))[0].square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())


@pytest.mark.parametrize("bad", [{"width": 0}, {"blocks": 0}, {"blocks": -3}])
def test_refuses_sizes_below_one(bad):
    with pytest.raises(UserError, match="1 or more"):
        ConvNet(**bad)


@pytest.mark.parametrize("huge", [{"blocks": 99}, {"blocks": 10**12}, {"width": 10**9}])
def test_refuses_what_would_fill_the_memory(huge):
    with pytest.raises(UserError, match=r"make more than 4,096 channels"):
        ConvNet(**huge)


def test_an_image_too_small_to_halve_is_an_error_that_says_so():
    with pytest.raises(UserError, match="8x32 pixels cannot be halved 4 times; give 16x16"):
        ConvNet()(torch.randn(2, 1, 8, 32))


def test_learns_to_tell_patterns_apart():
    torch.manual_seed(0)
    patterns = torch.randn(8, 1, 16, 16)
    net = ConvNet(width=8)
    probe = torch.nn.Linear(64, 8)
    optimizer = torch.optim.Adam([*net.parameters(), *probe.parameters()], lr=1e-2)
    labels = torch.arange(8).repeat(4)
    for _ in range(15):
        images = patterns[labels] + 0.3 * torch.randn(32, 1, 16, 16)
        loss = torch.nn.functional.cross_entropy(probe(net(images)[0].mean((2, 3))), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1
