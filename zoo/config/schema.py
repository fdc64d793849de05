"""The schema of a config: its sections, their defaults, and settings that contradict each other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from zoo.evaluation.names import CLUSTERING, Measure
from zoo.registry import Kind
from zoo.support.yaml import Key, Keys

# The sections that are components of the registry.
COMPONENTS: dict[Keys, Kind] = {
    ("dataset",): "datasets",
    ("model", "backbone"): "backbones",
    ("model", "space"): "spaces",
    ("loss",): "losses",
    ("miner",): "miners",
    ("sampler",): "samplers",
}
# The sections that are lists of them; one alone may be written without a list.
LISTS: dict[Keys, Kind] = {("trackers",): "trackers"}
# Those whose arguments may change while a network is trained.
SCHEDULED: frozenset[Kind] = frozenset({"losses", "miners"})
# The sections where ``key: x`` is short for ``key: {name: x}``.
NAMED: tuple[Keys, ...] = (*COMPONENTS, *LISTS, ("optimizer",), ("schedule",))
_FOR_TRAINING = ("loss", "sampler", "optimizer")

_Model = TypeVar("_Model", bound=BaseModel)

DEVICE = r"^(auto|cpu|mps|cuda(:[0-9]+)?)$"

# Larger values are typing errors, and would end in an overflow or full memory.
_MOST_SIDE = 2**14  # pixels
_MOST_IMAGES = 2**20  # in a batch
MOST_ITERATIONS = 10**9
_MOST_FACTOR = 1e6  # of a factor on a learning rate, and of a learning rate
_MOST_K = 2**31 - 2  # ranks are stored as int32, whose largest value means "no match"


def _refuse(model: _Model, found: Iterable[tuple[Keys, str]]) -> _Model:
    """Return a model without problems; raise all that were found, as pydantic does."""
    errors = [
        InitErrorDetails(
            type=PydanticCustomError("contradiction", "{message}", {"message": message}),
            loc=keys,
            input=None,
        )
        for keys, message in found
    ]
    if errors:
        raise ValidationError.from_exception_data(type(model).__name__, errors)
    return model


class _Spec(BaseModel):
    """A section of a config: no unknown keys, no conversions, immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ComponentSpec(_Spec):
    """A component of the registry: its name and its arguments."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(description="name of the component; `zoo list` shows all")

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of its constructor."""
        return dict(self.model_extra or {})


# A list in YAML; pydantic's strict mode would ask for a tuple.
_Pair = Annotated[tuple[float, float], Field(strict=False)]


class Images(_Spec):
    """How an image becomes an input, in training and at test."""

    resize: int | None = Field(
        default=None,
        ge=1,
        le=_MOST_SIDE,
        description="side in pixels to which both sides of images are scaled; null: not scaled",
    )
    keep_aspect: bool = Field(
        default=False, description="scale the shorter side to `resize`, the other in proportion"
    )
    cache: bool = Field(
        default=False,
        description="store the resized images in the cache folder, so that each is decoded once; "
        "the pixels stay the same",
    )
    crop: int | None = Field(
        default=None,
        ge=1,
        le=_MOST_SIDE,
        description="side of the square crop: random in training, the centre at test",
    )
    pad: int = Field(
        default=0,
        ge=0,
        le=_MOST_SIDE,
        description="border in pixels around the image before a random crop",
    )
    random_crop: Literal["translate", "resized"] = Field(
        default="translate",
        description="crop a square of `crop` pixels anywhere, or a part of any size, scaled to it",
    )
    scale: _Pair = Field(
        default=(0.2, 1.0),
        description="smallest and largest share of the image's area that a resized crop keeps",
    )
    mirror: bool = Field(default=False, description="flip half of the training images left-right")

    @model_validator(mode="after")
    def _agree(self) -> Images:
        return _refuse(self, self._contradictions())

    def _contradictions(self) -> Iterator[tuple[Keys, str]]:
        low, high = self.scale
        if not 0 < low <= high <= 1:
            yield ("scale",), f"must be two shares with 0 < low <= high <= 1, not {[low, high]}"
        if self.keep_aspect and self.resize is None:
            yield ("keep_aspect",), "needs images.resize: there is nothing to scale to"
        elif self.keep_aspect and self.crop is None:
            yield ("keep_aspect",), "needs images.crop: images of a batch must be of one size"
        if self.cache and (self.resize is None or self.keep_aspect):
            needs = "images.resize, without images.keep_aspect: cached images have one size"
            yield ("cache",), f"needs {needs}; or set images.cache=false"
        if self.crop is None:
            if self.pad:
                yield ("pad",), "needs images.crop: it is the border for a random crop"
            if self.random_crop == "resized":
                yield ("random_crop",), "needs images.crop: the side that the crop is scaled to"
            return
        if self.pad and self.random_crop == "resized":
            yield ("pad",), "has no effect on a resized crop; leave it out"
        elif self.resize is not None and self.crop > self.resize + 2 * self.pad:
            limit = f"{self.resize + 2 * self.pad}, images.resize"
            limit += " and twice images.pad" if self.pad else ""
            yield ("crop",), f"must be at most {limit}, not {self.crop}"


class Model(_Spec):
    """The network: a backbone, pooled and mapped to an embedding."""

    backbone: ComponentSpec = Field(description="the network that makes feature maps of images")
    embedding_size: int | None = Field(
        default=512,
        ge=2,  # of one number each, all cosines are 1 or -1
        le=2**16,
        description="length of the embedding, from a new linear layer; null: the pooled features",
    )
    slices: list[Annotated[int, Field(ge=1, le=2**16)]] | None = Field(
        default=None,
        min_length=2,
        max_length=2**10,
        description="sizes of the parts into which the embedding is cut, each with a loss of its "
        "own, or one loss that takes them all; null: not cut",
    )
    pooling: Literal["avg", "max", "gem", "attention"] = Field(
        default="avg",
        description="how a feature map becomes a vector: the mean or the maximum over its "
        "positions, a generalised mean with a learned power, or a mean with learned weights",
    )
    hidden: int | None = Field(
        default=None,
        ge=1,
        le=2**16,
        description="units of a hidden layer with ReLU before the linear layer of the embedding; "
        "null: no such layer",
    )
    norm: Literal["none", "features", "embedding"] = Field(
        default="none",
        description="what is normalised to mean 0 and variance 1 over its numbers, as by a layer "
        "norm without weights: nothing, the pooled features, or the embedding",
    )
    space: ComponentSpec | None = Field(
        default=None,
        description="the space whose distance compares images: euclidean, hyperbolic; null: the "
        "cosine of embeddings",
    )
    freeze: Literal["none", "batchnorm", "trunk"] = Field(
        default="none",
        description="part of the backbone that is not trained: none, the statistics and weights "
        "of batch normalisation, all of it",
    )

    @model_validator(mode="after")
    def _agree(self) -> Model:
        return _refuse(self, self._contradictions())

    def _contradictions(self) -> Iterator[tuple[Keys, str]]:
        if self.hidden is not None and self.embedding_size is None:
            yield ("hidden",), "needs model.embedding_size: it is before the layer of that size"
        if self.slices is not None and self.space is not None:
            yield ("slices",), "cut an embedding that is compared by cosines; set model.space=null"
        if self.slices is None or self.embedding_size in (None, sum(self.slices)):
            return  # the size of pooled features is not known here
        message = (
            f"must add up to model.embedding_size, {self.embedding_size}, not {sum(self.slices)}"
        )
        yield ("slices",), message


_WHICH = "which one it is"


class _Optimizer(_Spec):
    lr: float = Field(gt=0, le=_MOST_FACTOR, description="learning rate of the backbone")
    weight_decay: float = Field(default=0.0, ge=0, le=_MOST_FACTOR, description="weight decay")
    head_multiplier: float = Field(
        default=1.0,
        ge=0,
        le=_MOST_FACTOR,
        description="factor on the learning rate of new layers",
    )
    loss_multiplier: float = Field(
        default=1.0,
        ge=0,
        le=_MOST_FACTOR,
        description="factor on the learning rate of the loss's own parameters",
    )


class SGD(_Optimizer):
    """Stochastic gradient descent."""

    name: Literal["sgd"] = Field(description=_WHICH)
    momentum: float = Field(default=0.0, ge=0, lt=1, description="momentum")
    nesterov: bool = Field(default=False, description="Nesterov's form of the momentum")

    @model_validator(mode="after")
    def _agree(self) -> SGD:
        fine = self.momentum > 0 or not self.nesterov
        return _refuse(self, [] if fine else [(("nesterov",), "needs a momentum above 0")])


class _Adam(_Optimizer):
    betas: _Pair = Field(default=(0.9, 0.999), description="decay of the two running averages")
    eps: float = Field(default=1e-8, gt=0, le=_MOST_FACTOR, description="added to the denominator")

    @model_validator(mode="after")
    def _agree(self) -> _Adam:
        fine = all(0 <= beta < 1 for beta in self.betas)
        message = f"must be two numbers from 0 to below 1, not {list(self.betas)}"
        return _refuse(self, [] if fine else [(("betas",), message)])


class Adam(_Adam):
    """Adam, its weight decay part of the gradient."""

    name: Literal["adam"] = Field(description=_WHICH)


class AdamW(_Adam):
    """Adam, its weight decay apart from the gradient."""

    name: Literal["adamw"] = Field(description=_WHICH)
    weight_decay: float = Field(default=0.01, ge=0, le=_MOST_FACTOR, description="weight decay")


class _Schedule(_Spec):
    warmup: int = Field(
        default=0, ge=0, description="iterations in which the learning rate rises from 0"
    )
    over: int | None = Field(
        default=None,
        ge=1,
        le=MOST_ITERATIONS,
        description="length of the schedule in iterations, if training is to stop before its end; "
        "null: train.iterations",
    )


class Constant(_Schedule):
    """The learning rate stays the same."""

    name: Literal["constant"] = Field(default="constant", description=_WHICH)


class Cosine(_Schedule):
    """The learning rate falls along half a cosine."""

    name: Literal["cosine"] = Field(description=_WHICH)
    final: float = Field(default=0.0, ge=0, le=1, description="factor reached at the end")


class Step(_Schedule):
    """The learning rate falls in steps."""

    name: Literal["step"] = Field(description=_WHICH)
    every: int = Field(ge=1, le=MOST_ITERATIONS, description="iterations from one step to the next")
    gamma: float = Field(default=0.1, gt=0, le=1, description="factor of a step")


class Linear(_Schedule):
    """The learning rate falls along a line."""

    name: Literal["linear"] = Field(description=_WHICH)
    final: float = Field(default=0.0, ge=0, le=1, description="factor reached at the end")


Optimizer = Annotated[SGD | Adam | AdamW, Field(discriminator="name")]
Schedule = Annotated[Constant | Cosine | Step | Linear, Field(discriminator="name")]


class Train(_Spec):
    """How long to train, and how."""

    iterations: int = Field(
        ge=0,
        le=MOST_ITERATIONS,
        description="number of training steps; 0: evaluate the network without training",
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        default="auto", description="number format of the network; auto: the best of the device"
    )
    channels_last: bool = Field(
        default=True, description="use the memory layout that is fastest for convolutions on a GPU"
    )
    clip_norm: float | None = Field(
        default=None, gt=0, description="largest norm of the gradient; null: no limit"
    )
    processes: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="processes that share each batch and the evaluation, each on a GPU of its own, "
        "or with a share of the CPU's cores; the result is that of one",
    )
    sync_batchnorm: bool = Field(
        default=True,
        description="with several processes, batch normalisation uses the statistics of whole "
        "batches; false: refuse backbones that would need this",
    )
    workers: int | None = Field(
        default=None,
        ge=0,
        le=1024,
        description="processes that read images; null: chosen for the machine",
    )
    chunk_size: int | None = Field(
        default=None,
        ge=1,
        le=_MOST_IMAGES,
        description="images embedded at a time in training, for batches larger than the memory; "
        "costs a second forward pass; null: all",
    )
    checkpoint_every: int = Field(
        default=200, ge=1, le=MOST_ITERATIONS, description="iterations between checkpoints"
    )
    log_every: int = Field(
        default=50,
        ge=1,
        le=MOST_ITERATIONS,
        description="iterations between log lines; iterations 1, 2, 5, 10 and 20 are logged too",
    )


class Evaluate(_Spec):
    """What is measured, on which classes and when."""

    ks: list[Annotated[int, Field(ge=1, le=_MOST_K)]] = Field(
        default=[1, 2, 4, 8], min_length=1, description="the K of the Recall@K that are reported"
    )
    every: int | None = Field(
        default=None,
        ge=1,
        le=MOST_ITERATIONS,
        description="iterations between evaluations, of held-out classes if there are any; null: "
        "only at the end",
    )
    validation: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="share of the training classes that is held out to choose the checkpoint (see "
        "`every`) and the settings of a sweep; test classes are measured once, at the end; null: "
        "train on all classes and choose nothing",
    )
    features: bool = Field(
        default=False, description="also measure the pooled features below the embedding"
    )
    measures: list[Measure] = Field(
        default=[],
        description="other measures at the end: map_at_r, r_precision; nmi and ami, which are "
        "unreliable if classes have few images",
    )
    backend: Literal["torch", "faiss"] = Field(
        default="torch", description="library that searches for neighbours"
    )
    batch_size: int = Field(
        default=256, ge=1, le=_MOST_IMAGES, description="images embedded at a time"
    )

    @model_validator(mode="after")
    def _agree(self) -> Evaluate:
        return _refuse(self, self._contradictions())

    def _contradictions(self) -> Iterator[tuple[Keys, str]]:
        if self.ks != sorted(set(self.ks)):
            yield ("ks",), f"must rise without repeats, not {self.ks}"
        if len(set(self.measures)) < len(self.measures):
            yield ("measures",), f"must name each measure once, not {self.measures}"


class Paper(_Spec):
    """What the paper reports for this experiment."""

    table: str = Field(description="the table")
    row: str = Field(description="the row, as the paper calls it")
    dataset: str = Field(description="the data set, as the paper calls it")
    recall: dict[Annotated[int, Field(ge=1)], Annotated[float, Field(ge=0, le=100)] | None] = Field(
        description="Recall@K in percent by K; null: not reported"
    )


class Config(_Spec):
    """An experiment."""

    name: str = Field(
        max_length=100,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="name of the run; by default that of the file",
    )
    dataset: ComponentSpec = Field(description="the images and their labels")
    images: Images = Field(default=Images(), description="how an image becomes an input")
    model: Model = Field(description="the network, such as {backbone: convnet}")
    loss: ComponentSpec | None = Field(default=None, description="the loss; null: none")
    miner: ComponentSpec | None = Field(
        default=None, description="picks pairs or triplets for the loss; null: all are used"
    )
    sampler: ComponentSpec | None = Field(
        default=None, description="chooses the images of each batch"
    )
    optimizer: Optimizer | None = Field(default=None, description="how weights are updated")
    schedule: Schedule = Field(
        default=Constant(), description="how the learning rate changes over time"
    )
    train: Train = Field(description="how long to train, such as {iterations: 4000}")
    evaluate: Evaluate = Field(default=Evaluate(), description="what is measured")
    trackers: list[ComponentSpec] = Field(
        default=[], max_length=20, description="where the numbers of a run are shown as well"
    )
    paper: Paper | None = Field(default=None, description="the paper's results, to compare with")
    seed: int = Field(
        default=0, ge=0, lt=2**32, description="seed of the weights, batches and random crops"
    )
    device: str = Field(
        default="auto",
        pattern=DEVICE,
        description="auto, cpu, mps, cuda, or one GPU of several as cuda:0; auto: cuda if there "
        "is any, else cpu",
    )
    output: str = Field(default="runs", min_length=1, description="folder for the run folders")

    @model_validator(mode="after")
    def _agree(self) -> Config:
        return _refuse(self, contradictions(self.model_dump()))

    def resolved(self) -> dict[str, Any]:
        """Return the whole config as plain data with every default, in the order of the schema."""
        return cast("dict[str, Any]", _plain(self.model_dump()))

    def settings(self) -> dict[str, Any]:
        """Return the settings that define the experiment, as plain data.

        Left out are the seed, names, the paper's results, and settings that only affect where and
        how fast it runs. The measures count: they are part of a finished run's result.
        """
        data = cast("dict[str, Any]", numbers_alike(_plain(self.model_dump(exclude=_INCIDENTAL))))
        if self.evaluate.validation is None:  # keeps the run names of versions without validation
            del data["evaluate"]["validation"]
        data["evaluate"]["measures"].sort()  # their order does not matter
        if not self.evaluate.measures:
            del data["evaluate"]["measures"]
        if self.schedule.over is None:
            del data["schedule"]["over"]
        for later in ("slices", "space", "hidden", "norm"):  # that older versions did not have
            if getattr(self.model, later) == Model.model_fields[later].default:
                del data["model"][later]
        return data

    def digest(self) -> str:
        """Return 8 hex digits that two configs share if they have the same settings."""
        text = json.dumps(self.settings(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def run_name(self) -> str:
        """Return the name of the run's folder: ``<name>-<digest>-s<seed>``."""
        return f"{self.name}-{self.digest()}-s{self.seed}"


class ConfigFile(Config):
    """The content of a file: an experiment, or several that differ in some settings."""

    sweep: dict[str, list[Any]] | list[dict[str, Any]] | None = Field(
        default=None,
        description="settings to try: a map of dotted keys to lists of values, which are combined, "
        "or a list of maps of settings that go together",
    )
    seeds: list[int] | None = Field(default=None, description="seeds to run each experiment with")


_INCIDENTAL: Any = {
    "name": True,
    "paper": True,
    "seed": True,
    "device": True,
    "output": True,
    "trackers": True,
    "images": {"cache"},
    "train": {
        "processes",
        "sync_batchnorm",
        "workers",
        "chunk_size",
        "checkpoint_every",
        "log_every",
    },
    "evaluate": {"backend", "batch_size"},
}


def contradictions(data: Any) -> Iterator[tuple[Keys, str]]:
    """Yield which settings contradict each other, ignoring those that are wrong in themselves.

    It works on the unchecked data, so that these problems are reported together with all others.
    """
    measures = dig(data, ("evaluate", "measures"))
    named = measures if isinstance(measures, list) else []
    clustering = [name for name in CLUSTERING if name in named]
    if clustering and dig(data, ("model", "space")) is not None:
        message = (
            f"{' and '.join(clustering)} cluster by cosines: leave out, or set model.space=null"
        )
        yield ("evaluate", "measures"), message
    iterations = dig(data, ("train", "iterations"))
    warmup = dig(data, ("schedule", "warmup"))
    if type(iterations) is not int or iterations < 0:
        return
    if iterations == 0:
        for key in ("every", "validation"):
            if dig(data, ("evaluate", key)) is not None:
                yield ("evaluate", key), "makes no sense with train.iterations 0"
        return
    for part in _FOR_TRAINING:
        if dig(data, (part,)) is None:
            message = f"missing; {iterations} iterations of training need one"
            yield (part,), message + " (train.iterations=0 evaluates the network without training)"
    over = dig(data, ("schedule", "over"))
    if type(over) is int and 1 <= over < iterations:
        message = f"must be at least train.iterations, {iterations}, not {over}"
        yield ("schedule", "over"), message
    elif type(warmup) is int and warmup > (over if type(over) is int else iterations):
        limit = f"train.iterations, {iterations}" if over is None else f"schedule.over, {over}"
        yield ("schedule", "warmup"), f"must be at most {limit}, not {warmup}"
    headless = dig(data, ("model", "embedding_size"), 512) is None
    learned = dig(data, ("model", "pooling")) in ("gem", "attention")
    if headless and not learned and dig(data, ("model", "freeze")) == "trunk":
        message = "leaves nothing to train where model.embedding_size is null"
        yield ("model", "freeze"), message


def dig(data: Any, keys: Iterable[Key], default: Any = None) -> Any:
    """Return the value at ``keys`` in plain data."""
    for key in keys:
        if isinstance(data, list) and key in range(len(data)):
            data = data[int(key)]
        elif isinstance(data, dict) and key in data:
            data = data[key]
        else:
            return default
    return data


def components_in(data: Any) -> dict[Keys, Kind]:
    """Return where plain data may have components: sections, and the items of lists of them."""
    found = dict(COMPONENTS)
    for keys, kind in LISTS.items():
        items = dig(data, keys)
        found |= {(*keys, i): kind for i in range(len(items) if isinstance(items, list) else 0)}
    return found


def _plain(data: Any) -> Any:
    """Return data with lists instead of tuples, and with ``name`` first in each map."""
    if isinstance(data, dict):
        first = {"name": data["name"]} if "name" in data else {}
        return {key: _plain(value) for key, value in (first | data).items()}
    return [_plain(value) for value in data] if isinstance(data, list | tuple) else data


def numbers_alike(data: Any) -> Any:
    """Return data in which 64 and 64.0 are equal and all keys are text."""
    if isinstance(data, dict):
        return {str(key): numbers_alike(value) for key, value in data.items()}
    if isinstance(data, list):
        return [numbers_alike(value) for value in data]
    return int(data) if isinstance(data, float) and data.is_integer() else data
