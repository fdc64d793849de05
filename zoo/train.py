"""One training step, the optimiser's groups and schedule, and what a checkpoint holds."""

from __future__ import annotations

import math
import random
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from zoo import _contracts
from zoo.embedder import Embedder
from zoo.errors import UserError, blaming
from zoo.pipeline import Batch
from zoo.schema import DEVICE, Config, Optimizer, Schedule

_OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
_NOT_TORCHS = {"name", "lr", "head_multiplier", "loss_multiplier"}
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_ADVICE = (
    "try a lower optimizer.lr, train.clip_norm=1.0, schedule.warmup=100 or train.precision=fp32"
)


class DivergedError(RuntimeError):
    """The loss, its gradient or the network is no longer finite."""


class Trainer:
    """Everything that changes while a network trains, and the step that changes it.

    Args:
        config: the experiment; it has an optimizer.
        embedder: the network, on its device.
        loss: called as the losses of pytorch-metric-learning are; a ModuleList of one for each
            level of the network where there are several, of which the sum is minimised.
        miner: picks what the loss looks at; None for all.
        precision: fp32, bf16 or fp16, as :func:`choose_precision` returns it.
    """

    def __init__(
        self,
        config: Config,
        embedder: Embedder,
        loss: nn.Module,
        miner: Callable[[Tensor, Tensor], Any] | None,
        precision: str,
    ) -> None:
        assert config.optimizer is not None
        self.embedder, self.loss, self.miner = embedder, loss, miner
        self.losses = list(loss) if isinstance(loss, nn.ModuleList) else [loss]
        self.clip_norm = config.train.clip_norm
        self.chunk_size = config.train.chunk_size
        if self.chunk_size:
            _check_chunks(embedder)
        self.loss_name = config.loss.name if config.loss else "none"
        self.miner_name = config.miner.name if config.miner else "none"
        self.device = next(embedder.parameters()).device
        self.dtype = _DTYPES.get(precision)
        self.iteration = 0
        self.optimizer = make_optimizer(config.optimizer, embedder, loss)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.factor = learning_rate_factor(config.schedule, config.train.iterations)
        self._set_rates()
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")
        self.parameters = [p for g in self.optimizer.param_groups for p in g["params"]]
        self.meter = Meter(self.device, len(self.losses))

    def step(self, batch: Batch) -> None:
        """Learn from one batch."""
        images, labels = batch.on(self.device)
        self.embedder.train()
        with torch.autocast(self.device.type, self.dtype) if self.dtype else nullcontext():
            embeddings = self._embed(images)
        # The loss and the miner are float32 work, whatever precision the network has.
        embeddings = embeddings.float()
        levels = self.embedder.levels(embeddings)
        losses = [self._loss(*pair, labels) for pair in zip(self.losses, levels, strict=True)]
        loss = torch.stack([of_level.reshape(()) for of_level in losses])
        total = loss.sum()
        self.optimizer.zero_grad(set_to_none=True)
        with blaming(f"the backward pass of {self.loss_name} in iteration {self.iteration + 1}"):
            torch.autograd.backward(self.scaler.scale(total))
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.clip_norm or math.inf)
        self.meter.update(batch, loss.detach(), norm, check_norm=not self.scaler.is_enabled())
        if self.device.type == "cpu":  # on a GPU the look would make it wait
            self.check()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.iteration += 1
        self._set_rates()

    def _set_rates(self) -> None:
        """Set the learning rates of the next step.

        Not by one of torch's schedulers: they warn where fp16 skips the first step, as it may.
        """
        factor = self.factor(self.iteration)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor

    def _loss(self, loss: nn.Module, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of one level."""
        names, when = (self.loss_name, self.miner_name), f"in iteration {self.iteration + 1}"
        return loss_of(loss, self.miner, embeddings, labels, names, when)[0]

    def _embed(self, images: Tensor) -> Tensor:
        """Return the embeddings of a batch; in chunks, of which no activations are kept.

        They are computed again, chunk by chunk, once the loss of the whole batch is known.
        """
        if self.chunk_size is None or len(images) <= self.chunk_size:
            embeddings: Tensor = self.embedder(images)
            return embeddings
        parts = torch.split(images, self.chunk_size)
        return torch.cat([checkpoint(self.embedder, part, use_reentrant=False) for part in parts])

    def check(self) -> None:
        """Stop if a loss or a gradient since the last check was not finite.

        Raises:
            DivergedError: naming the iteration, the loss and the batch.
        """
        found = self.meter.first_bad()
        if found is None:
            return
        iteration, what, indices = found
        shown = ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")
        raise DivergedError(
            f"iteration {iteration + 1}: the {what} of {self.loss_name} is not finite on the batch "
            f"of {len(indices)} images {shown}; {_ADVICE}"
        )

    def check_weights(self) -> None:
        """Stop if what a checkpoint would keep of the network or the loss is not finite.

        In fp16 this alone notices, if the loss stays finite: a gradient may overflow, and the step
        is then skipped; batch normalisation has no gradient.

        Raises:
            DivergedError: naming the iteration and the first such tensor.
        """
        state = {**self.embedder.state_dict(), **dict(self.loss.named_parameters(prefix="loss"))}
        kept = {k: t.detach() for k, t in state.items() if t.is_floating_point() and t.numel()}
        # The largest number of each, all at once; to look at them one by one would make a GPU wait.
        norms = torch._foreach_norm  # pyright: ignore[reportPrivateImportUsage]
        largest = norms(list(kept.values()), math.inf)
        fine = torch.stack([number.float() for number in largest]).isfinite().tolist()
        if not all(fine):
            name = list(kept)[fine.index(False)]
            raise DivergedError(
                f"iteration {self.iteration}: the network is no longer finite ({name}); {_ADVICE}"
            )

    def state_dict(self, sampler_state: dict[str, Any]) -> dict[str, Any]:
        """Return all that a run needs to go on as if it had not been stopped."""
        return {
            "iteration": self.iteration,
            "embedder": self.embedder.state_dict(),
            "loss": self.loss.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "meter": self.meter.state_dict(),
            "sampler": sampler_state,
            "random": _random_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.iteration = state["iteration"]
        self.embedder.load_state_dict(state["embedder"])
        self.loss.load_state_dict(state["loss"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.meter.load_state_dict(state["meter"])
        _set_random_state(state["random"])


class Meter:
    """The mean loss since the last look, and the first number that was not finite.

    It adds up on the device: looking at a number makes a GPU wait, so that is left to the caller.
    """

    def __init__(self, device: torch.device, levels: int = 1, remembered: int = 1000) -> None:
        self.total = torch.zeros(levels, device=device)
        self.norm = torch.zeros((), device=device)
        self.count = 0
        self.bad = torch.full((2,), -1, dtype=torch.int64, device=device)
        self.recent: deque[tuple[int, list[int]]] = deque(maxlen=remembered)

    def update(self, batch: Batch, loss: Tensor, norm: Tensor, check_norm: bool) -> None:
        """Add the loss of each level and the gradient norm of a batch."""
        self.total += loss
        self.norm = norm
        self.count += 1
        self.recent.append((batch.iteration, batch.indices))
        loss_fine = loss.isfinite().all()
        fine = torch.stack([loss_fine, norm.isfinite() if check_norm else loss_fine])
        self.bad = torch.where((self.bad < 0) & ~fine, batch.iteration, self.bad)

    def read(self) -> tuple[list[float], float]:
        """Return each level's mean loss since the last reading, and the last gradient norm."""
        means = (self.total / max(1, self.count)).tolist()
        self.total.zero_()
        self.count = 0
        return means, float(self.norm)

    def first_bad(self) -> tuple[int, str, list[int]] | None:
        """Return (iteration, loss or gradient, indices of the images) of the first bad number."""
        loss, gradient = self.bad.tolist()
        if loss < 0 and gradient < 0:
            return None
        what = "gradient" if loss < 0 or 0 <= gradient < loss else "loss"
        iteration = gradient if what == "gradient" else loss
        return iteration, what, dict(self.recent).get(iteration, [])

    def state_dict(self) -> dict[str, Any]:
        """Return the sum that the next mean is made of."""
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on adding to a saved sum."""
        self.total.copy_(state["total"])
        self.count = int(state["count"])


def _check_chunks(embedder: Embedder) -> None:
    if any(isinstance(m, _BatchNorm) and m.training for m in embedder.train().modules()):
        raise UserError(
            "train.chunk_size: batch normalisation would see chunks for batches; set "
            "model.freeze=batchnorm, or leave train.chunk_size out"
        )


def loss_of(
    loss: nn.Module,
    miner: Callable[[Tensor, Tensor], Any] | None,
    embeddings: Tensor,
    labels: Tensor,
    names: tuple[str, str],
    when: str,
) -> tuple[Tensor, tuple[Tensor, ...] | None]:
    """Return the loss of some embeddings, and what was mined for it; None without a miner.

    Args:
        loss: called as the losses of pytorch-metric-learning are.
        miner: likewise; None for all pairs.
        embeddings: (N, d).
        labels: (N,).
        names: what messages call the loss and the miner.
        when: what they say of the call.

    Raises:
        UserError: if one of them raises something, or gives what the other cannot use.
    """
    mined: tuple[Any, ...] = ()  # a loss may do without the argument where there is no miner
    if miner is not None:
        with blaming(f"{names[1]} {when}"):
            mined = (miner(embeddings.detach(), labels),)
        # Indices are looked at where that costs nothing: on a GPU it would have to be waited for.
        fault = _contracts.mined(mined[0], None if embeddings.is_cuda else len(embeddings))
        if fault:
            raise UserError(f"{names[1]} {when} {fault}")
    with blaming(f"{names[0]} {when}"):
        value: Tensor = loss(embeddings, labels, *mined)
    _check_loss(names[0], value)
    return value, mined[0] if mined else None


def _check_loss(name: str, loss: Any) -> None:
    """Refuse what cannot be minimised; it looks at no number, for which a GPU would wait."""
    if not isinstance(loss, Tensor):
        got = f"a {type(loss).__name__}"
    elif loss.numel() != 1:
        got = f"a tensor of shape {tuple(loss.shape)}"
    elif not loss.requires_grad:
        got = "a number that does not depend on the embeddings"
    else:
        return
    raise UserError(f"{name} returned {got}; training needs a scalar with a graph")


@contextmanager
def unchanged_randomness() -> Iterator[None]:
    """Leave every global generator as it was."""
    state = _random_state()
    try:
        yield
    finally:
        _set_random_state(state)


def make_optimizer(spec: Optimizer, embedder: Embedder, loss: nn.Module) -> torch.optim.Optimizer:
    """Build the optimiser: the trunk, the new layers and the loss each have their own group."""
    shares = {
        "trunk": (list(embedder.trunk_parameters()), 1.0),
        "head": (list(embedder.head_parameters()), spec.head_multiplier),
        "loss": ([p for p in loss.parameters() if p.requires_grad], spec.loss_multiplier),
    }
    groups = [
        {"params": parameters, "lr": spec.lr * multiplier, "name": name}
        for name, (parameters, multiplier) in shares.items()
        if parameters
    ]
    return _OPTIMIZERS[spec.name](groups, **spec.model_dump(exclude=_NOT_TORCHS))


def learning_rate_factor(schedule: Schedule, iterations: int) -> Callable[[int], float]:
    """Return the factor of the learning rate at iteration t, from 0."""

    def decayed(t: int) -> float:
        done = t / max(1, schedule.over or iterations)
        if schedule.name == "cosine":
            return schedule.final + (1 - schedule.final) * (1 + math.cos(math.pi * done)) / 2
        if schedule.name == "linear":
            return 1 + (schedule.final - 1) * done
        if schedule.name == "step":
            return schedule.gamma ** (t // schedule.every)
        return 1.0

    return lambda t: decayed(t) * min(1.0, (t + 1) / (schedule.warmup + 1))


def choose_device(name: str) -> torch.device:
    """Return the device a config asks for; auto takes CUDA if there is any, else the CPU.

    Raises:
        UserError: if there is no such device.
    """
    if not re.fullmatch(DEVICE, name):
        raise UserError(f"device {name!r}: give auto, cpu, mps, cuda, or cuda:0 and so on")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda"):
        index = int(name.partition(":")[2] or 0)
        if index >= torch.cuda.device_count():
            raise UserError(f"device={name}: this machine has {torch.cuda.device_count()} GPUs")
    if name == "mps" and not torch.backends.mps.is_available():
        raise UserError("device=mps: not available on this machine")
    return torch.device(name)


def choose_precision(name: str, device: torch.device) -> str:
    """Return fp32, bf16 or fp16; auto is bf16 where the hardware multiplies it faster."""
    if name != "auto":
        if name != "fp32" and not torch.amp.is_autocast_available(device.type):
            raise UserError(
                f"train.precision={name}: PyTorch {torch.__version__} has fp32 alone on "
                f"{device.type}; set train.precision=fp32, or install a newer one"
            )
        return name
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp32"
    has_tiles = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    return "bf16" if device.type == "cpu" and has_tiles() else "fp32"


def _random_state() -> dict[str, Any]:
    """Return the state of every global generator, in types that a safe loader admits."""
    version, numbers, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=False)
    numpy_state["state"]["key"] = numpy_state["state"]["key"].tolist()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": [version, list(numbers), gauss],
        "numpy": numpy_state,
    }


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    numpy_state = {**state["numpy"], "state": dict(state["numpy"]["state"])}
    numpy_state["state"]["key"] = np.array(numpy_state["state"]["key"], dtype=np.uint32)
    np.random.set_state(numpy_state)
