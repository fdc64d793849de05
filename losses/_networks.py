"""Small networks that a loss trains beside the one that embeds, each by its own objective."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.func import functional_call

OWN_OBJECTIVES = (
    "its networks have objectives of their own, so that their gradient is not the derivative of "
    "the value; the tests of this loss compare each with that of its objective"
)


def perceptron(*sizes: int) -> nn.Sequential:
    """Return linear layers of these sizes, with a ReLU between them."""
    layers: list[nn.Module] = []
    for size_in, size_out in pairwise(sizes):
        layers += [nn.Linear(size_in, size_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def correction(*sizes: int) -> nn.Sequential:
    """Return a perceptron whose output is 0 at first, to be added to something."""
    network = perceptron(*sizes)
    last = network[-1]
    assert isinstance(last, nn.Linear)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return network


def apply(network: nn.Module, x: Tensor, frozen: bool = False) -> Tensor:
    """Return the output of a network in the type of x; frozen, it gets no gradient itself."""
    weights = {
        name: (p.detach() if frozen else p).to(x.dtype) for name, p in network.named_parameters()
    }
    result: Tensor = functional_call(network, weights, (x,))
    return result


def gradient_only(objective: Tensor) -> Tensor:
    """Return 0 with the gradient of an objective, which is minimised without being reported."""
    return objective - objective.detach()
