"""One training step, the learning rates, and the content of a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from zoo.config.schema import Config
from zoo.data.pipeline import Batch
from zoo.errors import UserError, blaming
from zoo.network.embedder import Embedder
from zoo.parallel.ranks import Ranks
from zoo.registry.calling import loss_of, part_of, takes_image_ids
from zoo.support.randomness import random_state, set_random_state
from zoo.training.meter import Meter
from zoo.training.optimizer import learning_rate_factor, make_optimizer

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_ADVICE = (
    "try a lower optimizer.lr, train.clip_norm=1.0, schedule.warmup=100 or train.precision=fp32"
)


class DivergedError(RuntimeError):
    """The loss, its gradient or the network is no longer finite."""


class Trainer:
    """All state that changes in training, and the step that changes it.

    Args:
        config: the experiment; it has an optimizer.
        embedder: the network, on its device.
        loss: called like the losses of pytorch-metric-learning; a ModuleList of one for each level
            of the embedding, whose sum is minimised, or one for all of them.
        miner: picks pairs or triplets for the loss; None for all.
        precision: fp32, bf16 or fp16, as :func:`choose_precision` returns it.
        ranks: the processes that share each batch. Each embeds its share, and computes the loss of
            all embeddings, or the part of its own anchors if the loss has a method ``part``.
    """

    def __init__(
        self,
        config: Config,
        embedder: Embedder,
        loss: nn.Module,
        miner: Callable[[Tensor, Tensor], Any] | None,
        precision: str,
        ranks: Ranks | None = None,
    ) -> None:
        assert config.optimizer is not None
        self.embedder, self.loss, self.miner = embedder, loss, miner
        self.losses = list(loss) if isinstance(loss, nn.ModuleList) else [loss]
        self.ranks, self.seed = ranks or Ranks(), config.seed
        self.takes_ids = [takes_image_ids(one) for one in self.losses]
        shareable = miner is None and not any(self.takes_ids)
        has_parts = shareable and all(hasattr(one, "part") for one in self.losses)
        self.in_parts = has_parts and not self.ranks.alone
        self._gather = self.ranks.gather_parts if self.in_parts else self.ranks.gather
        self.clip_norm = config.train.clip_norm
        self.chunk_size = config.train.chunk_size
        if self.chunk_size:
            _check_chunks(embedder)
        self.loss_name = config.loss.name if config.loss else "none"
        self.miner_name = config.miner.name if config.miner else "none"
        self.device = next(embedder.parameters()).device
        self.dtype = _DTYPES.get(precision)
        self.iteration = 0
        self.optimizer = make_optimizer(config.optimizer, embedder, loss, self.loss_name)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.factor = learning_rate_factor(config.schedule, config.train.iterations)
        self._set_rates()
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")
        self.parameters = [p for g in self.optimizer.param_groups for p in g["params"]]
        state = [*embedder.state_dict().values(), *loss.state_dict().values()]
        self.ranks.copy_first([value for value in state if isinstance(value, Tensor)])
        self.meter = Meter(self.device, len(self.losses))

    def step(self, batch: Batch) -> None:
        """Learn from one batch."""
        images, labels = batch.on(self.device)
        self.embedder.train()
        with (
            torch.autocast(self.device.type, self.dtype) if self.dtype else nullcontext(),
            self.ranks.own_randomness(self.seed, self.iteration),
        ):
            embeddings = self._embed(images)
        # The loss and the miner compute in float32, whatever the precision of the network.
        embeddings = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
        embeddings = self._gather(embeddings, self.ranks.counts(len(labels)))
        loss = torch.stack(self._losses(embeddings, labels, batch.indices))
        total = loss.sum()
        self.optimizer.zero_grad(set_to_none=True)
        with blaming(f"the backward pass of {self.loss_name} in iteration {self.iteration + 1}"):
            torch.autograd.backward(self.scaler.scale(total))
        self._add_gradients()
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.clip_norm or math.inf)
        loss = loss.detach()
        if self.in_parts:
            self.ranks.sum([loss])
        self.meter.update(batch, loss, norm, check_norm=not self.scaler.is_enabled())
        if self.device.type == "cpu":  # reading the number would make a GPU wait
            self.check()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.iteration += 1
        self._set_rates()

    def _add_gradients(self) -> None:
        """Add up the gradients of all processes; those of a whole loss are equal: count one."""
        if self.ranks.alone:
            return
        if not (self.ranks.first or self.in_parts):
            for parameter in self.loss.parameters():
                if parameter.grad is not None:
                    parameter.grad.zero_()
        somewhere = self.ranks.any(*(p.grad is not None for p in self.parameters))
        gradients = []
        for parameter, used in zip(self.parameters, somewhere, strict=True):
            if used:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        self.ranks.sum(gradients)

    def _set_rates(self) -> None:
        """Set the learning rates of the next step.

        torch's schedulers are not used: they warn if fp16 skips the first step, which it may.
        """
        factor = self.factor(self.iteration)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor

    def _losses(self, embeddings: Tensor, labels: Tensor, indices: list[int]) -> list[Tensor]:
        """Return the loss of each level, or the part of it that this process computes."""
        names, when = (self.loss_name, self.miner_name), f"in iteration {self.iteration + 1}"
        several = isinstance(self.loss, nn.ModuleList)
        levels = self.embedder.levels(embeddings) if several else (embeddings,)
        ids = None
        if any(self.takes_ids):
            ids = torch.tensor(indices).to(self.device, non_blocking=True)
        found = []
        for loss, level, takes in zip(self.losses, levels, self.takes_ids, strict=True):
            if self.in_parts:
                value = part_of(loss, self.ranks, level, labels, names[0], when)
            else:
                given = ids if takes else None
                value = loss_of(loss, self.miner, level, labels, names, when, given)[0]
            found.append(value.reshape(()))
        return found

    def _embed(self, images: Tensor) -> Tensor:
        """Return the embeddings of a batch; chunks keep no activations.

        These are computed again, chunk by chunk, when the loss of the whole batch is known.
        """
        if self.chunk_size is None or len(images) <= self.chunk_size:
            embeddings: Tensor = self.embedder(images)
            return embeddings
        parts = torch.split(images, self.chunk_size)
        return torch.cat([checkpoint(self.embedder, part, use_reentrant=False) for part in parts])

    def check(self) -> None:
        """Raise a DivergedError if a loss or a gradient since the last check was not finite."""
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
        """Raise a DivergedError if a number of the network or the loss is not finite.

        In fp16 this is the only sign if the loss stays finite: steps whose gradient overflows are
        skipped, and the statistics of batch normalisation have no gradient.
        """
        state = {**self.embedder.state_dict(), **dict(self.loss.named_parameters(prefix="loss"))}
        kept = {k: t.detach() for k, t in state.items() if t.is_floating_point() and t.numel()}
        # The largest number of each, all at once: reading them one by one would make a GPU wait.
        norms = torch._foreach_norm  # pyright: ignore[reportPrivateImportUsage]
        largest = norms(list(kept.values()), math.inf)
        fine = torch.stack([number.float() for number in largest]).isfinite().tolist()
        if not all(fine):
            name = list(kept)[fine.index(False)]
            raise DivergedError(
                f"iteration {self.iteration}: the network is no longer finite ({name}); {_ADVICE}"
            )

    def state_dict(self, sampler_state: dict[str, Any]) -> dict[str, Any]:
        """Return all that a run needs to continue as if it had not been stopped."""
        return {
            "iteration": self.iteration,
            "embedder": self.embedder.state_dict(),
            "loss": self.loss.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "meter": self.meter.state_dict(),
            "sampler": sampler_state,
            "random": random_state(self.device),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.iteration = state["iteration"]
        self.embedder.load_state_dict(state["embedder"])
        self.loss.load_state_dict(state["loss"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.meter.load_state_dict(state["meter"])
        set_random_state(state["random"], self.device)


def _check_chunks(embedder: Embedder) -> None:
    if any(isinstance(m, _BatchNorm) and m.training for m in embedder.train().modules()):
        raise UserError(
            "train.chunk_size: batch normalisation would see chunks instead of batches; set "
            "model.freeze=batchnorm, or leave train.chunk_size out"
        )
