"""Changes the arguments of a loss or a miner while it is used, by the schedules of a config.

A component is written for fixed arguments, and may keep them in any form: a loss of
pytorch-metric-learning that is given a scale may keep a temperature. What an argument changes in
it is found by building it twice. At each change, it is built anew, and the numbers that differ are
copied into the one in use, which keeps all that it has learned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from zoo.config import schedules
from zoo.config.schema import ComponentSpec
from zoo.errors import UserError
from zoo.registry import Kind
from zoo.support.randomness import unchanged_randomness

_PLAIN = (bool, int, float, str, tuple, type(None))
_Place = tuple[str, str]  # of an attribute: the path of its module, and its name


class Scheduled:
    """A component in use whose arguments change.

    Args:
        kind: losses or miners.
        spec: its name and its arguments in the config, some of which are schedules.
        used: the component, built with the arguments that it starts with.
        build: from fixed arguments to a component like it.

    Raises:
        UserError: an argument cannot be changed in a component that has begun to learn.
    """

    def __init__(
        self,
        kind: Kind,
        spec: ComponentSpec,
        used: nn.Module,
        build: Callable[[dict[str, Any]], nn.Module],
    ) -> None:
        self.kind, self._spec, self._used, self._build = kind, spec, used, build
        self._name, self._arguments = spec.name, spec.arguments
        self._now = schedules.arguments_at(spec.arguments, 0.0)
        self._places = self._changing_places()

    def set(self, share: float) -> None:
        """Give the component the values it has when this share of the iterations is done."""
        wanted = schedules.arguments_at(self._arguments, share)
        if wanted == self._now:
            return
        other = self._made(wanted)
        modules, of_other = dict(self._used.named_modules()), dict(other.named_modules())
        for path, attribute in self._places:
            value = getattr(of_other[path], attribute)
            if isinstance(value, Tensor):
                getattr(modules[path], attribute).copy_(value)
            else:
                setattr(modules[path], attribute, value)
        self._now = wanted

    def rehearse(self, call: Callable[[nn.Module], Tensor]) -> None:
        """Check that a changed component gives what a new one gives.

        Raises:
            UserError: it does not: it keeps the argument in a form that cannot be copied.
        """
        for share in schedules.moments(self._arguments)[1:]:
            wanted = schedules.arguments_at(self._arguments, share)
            changed = Scheduled(self.kind, self._spec, self._made(self._now), self._build)
            changed.set(share)
            values = []
            for component in (changed._used, self._made(wanted)):
                with unchanged_randomness():
                    torch.manual_seed(0)
                    values.append(call(component).detach())
            if not torch.equal(*values):
                raise UserError(
                    f"{self._name}: changed by its schedule, it is not what a new one is; "
                    "it keeps the argument in a form that cannot be changed; give a fixed value"
                )

    def _changing_places(self) -> list[_Place]:
        """Return the attributes in which components differ that are built at different times."""
        first, *others = (
            self._made(schedules.arguments_at(self._arguments, share))
            for share in schedules.moments(self._arguments)
        )
        places: dict[_Place, None] = {}
        for other in others:
            places |= dict.fromkeys(self._differences(first, other))
        if not places:
            raise UserError(f"{self._name}: its schedules change nothing in it; give fixed values")
        return list(places)

    def _differences(self, one: nn.Module, other: nn.Module) -> Iterator[_Place]:
        modules, of_other = dict(one.named_modules()), dict(other.named_modules())
        if modules.keys() != of_other.keys():
            raise UserError(f"{self._name}: {_STRUCTURE}")
        for path, module in modules.items():
            mine, theirs = _attributes(module), _attributes(of_other[path])
            for attribute in mine.keys() | theirs.keys():
                a, b = mine.get(attribute), theirs.get(attribute)
                if not isinstance(a, Tensor) or not isinstance(b, Tensor):
                    if a is not b and a != b:
                        yield path, attribute
                elif a.shape != b.shape:
                    raise UserError(f"{self._name}: {_STRUCTURE}")
                elif not torch.equal(a, b):
                    where = ".".join(filter(None, (path, attribute)))
                    if isinstance(a, nn.Parameter):
                        raise UserError(
                            f"{self._name}: a schedule changes the start of what it learns "
                            f"({where}), which has no effect later; give a fixed value"
                        )
                    if a.numel() > 1 and attribute in module._buffers:
                        raise UserError(
                            f"{self._name}: a schedule would change {where} behind what was "
                            "learned with it; give a fixed value"
                        )
                    yield path, attribute

    def _made(self, arguments: dict[str, Any]) -> nn.Module:
        """Return a new component; all have the same random weights."""
        with unchanged_randomness():
            torch.manual_seed(0)
            return self._build(arguments)


_STRUCTURE = "a schedule changes the shape of what it learns; give a fixed value"


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Return the numbers and texts that a module keeps, and its tensors."""
    plain = {key: value for key, value in vars(module).items() if isinstance(value, _PLAIN)}
    own = {key: value for key, value in vars(module).items() if isinstance(value, Tensor)}
    return {**plain, **own, **module._buffers, **module._parameters}
