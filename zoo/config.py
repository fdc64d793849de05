"""Configs: YAML -> checked specs, all problems of a file in one go, each with its line.

    config = load("ice_glyphs", ["loss.scale=32", "seed=1"])

The classes below are the schema; what a component takes is asked of its class by the registry.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from zoo import _yaml, registry
from zoo._yaml import Key, Keys, Node, Place, Problem, kind_of, merge
from zoo.base import RUNTIME
from zoo.errors import UserError, did_you_mean
from zoo.registry import Kind

# Where a config names components of the registry.
COMPONENTS: dict[Keys, Kind] = {
    ("dataset",): "datasets",
    ("model", "backbone"): "backbones",
    ("loss",): "losses",
    ("miner",): "miners",
    ("sampler",): "samplers",
}
# Where ``key: x`` is short for ``key: {name: x}``.
_NAMED: tuple[Keys, ...] = (*COMPONENTS, ("optimizer",), ("schedule",))
_COMMAND_LINE = "command line"
_MAX_PARENTS = 20
_FOR_TRAINING = ("loss", "sampler", "optimizer")

_Model = TypeVar("_Model", bound=BaseModel)


def _refuse(model: _Model, found: Iterable[tuple[Keys, str]]) -> _Model:
    """Return a model in which nothing was found; raise all that was, as pydantic does."""
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
    """A section of a config: nothing unknown, nothing converted, nothing changed afterwards."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Component(_Spec):
    """A component of the registry: its name and, beside it, its arguments."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(description="name of the component; `zoo list` shows what there is")

    @property
    def arguments(self) -> dict[str, Any]:
        """What its constructor is given."""
        return dict(self.model_extra or {})


# A list in YAML; pydantic's strict mode would ask for a tuple.
_Pair = Annotated[tuple[float, float], Field(strict=False)]


class Images(_Spec):
    """How an image becomes an input, in training and at test."""

    resize: int | None = Field(
        default=None,
        ge=1,
        description="side in pixels that images are scaled to, both sides alike; null: as they are",
    )
    keep_aspect: bool = Field(
        default=False, description="scale the shorter side to `resize`, the other in proportion"
    )
    crop: int | None = Field(
        default=None,
        ge=1,
        description="side of the square cut out: at random in training, the centre at test",
    )
    pad: int = Field(
        default=0, ge=0, description="border in pixels around the image before a random crop"
    )
    random_crop: Literal["translate", "resized"] = Field(
        default="translate",
        description="cut a square of `crop` pixels anywhere, or a part of any size scaled to it",
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

    backbone: Component = Field(description="the network that makes feature maps of images")
    embedding_size: int | None = Field(
        default=512,
        ge=1,
        description="length of the embedding, from a new linear layer; null: the pooled features",
    )
    pooling: Literal["avg", "max"] = Field(
        default="avg", description="how a feature map becomes a vector"
    )
    freeze: Literal["none", "batchnorm", "trunk"] = Field(
        default="none",
        description="what of the backbone stays as it is: nothing, the statistics and weights of "
        "batch normalisation, all of it",
    )


_WHICH = "which of them it is"


class _Optimizer(_Spec):
    lr: float = Field(gt=0, description="learning rate of the backbone")
    weight_decay: float = Field(default=0.0, ge=0, description="weight decay")
    head_multiplier: float = Field(
        default=1.0, ge=0, description="factor on the learning rate of new layers"
    )
    loss_multiplier: float = Field(
        default=1.0, ge=0, description="factor on the learning rate of the loss's own parameters"
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
    eps: float = Field(default=1e-8, gt=0, description="added to the denominator")

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
    weight_decay: float = Field(default=0.01, ge=0, description="weight decay")


class _Schedule(_Spec):
    warmup: int = Field(
        default=0, ge=0, description="iterations in which the learning rate rises from 0"
    )


class Constant(_Schedule):
    """The learning rate stays as it is."""

    name: Literal["constant"] = Field(default="constant", description=_WHICH)


class Cosine(_Schedule):
    """The learning rate falls along half a cosine."""

    name: Literal["cosine"] = Field(description=_WHICH)
    final: float = Field(default=0.0, ge=0, le=1, description="factor reached at the end")


class Step(_Schedule):
    """The learning rate falls in steps."""

    name: Literal["step"] = Field(description=_WHICH)
    every: int = Field(ge=1, description="iterations from one step to the next")
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
        ge=0, description="number of training steps; 0: evaluate the network as it is"
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        default="auto", description="number format of the network; auto: the best the device has"
    )
    channels_last: bool = Field(
        default=True, description="memory layout that convolutions on a GPU are fastest with"
    )
    clip_norm: float | None = Field(
        default=None, gt=0, description="largest norm of the gradient; null: no limit"
    )
    workers: int | None = Field(
        default=None, ge=0, description="processes that read images; null: chosen by the machine"
    )
    checkpoint_every: int = Field(default=200, ge=1, description="iterations between checkpoints")
    log_every: int = Field(default=50, ge=1, description="iterations between log lines")


class Evaluate(_Spec):
    """What is measured on the test split."""

    ks: list[Annotated[int, Field(ge=1)]] = Field(
        default=[1, 2, 4, 8], min_length=1, description="the K of the Recall@K that are reported"
    )
    every: int | None = Field(
        default=None, ge=1, description="iterations between evaluations; null: only at the end"
    )
    backend: Literal["torch", "faiss"] = Field(
        default="torch", description="what searches for neighbours"
    )
    batch_size: int = Field(default=256, ge=1, description="images embedded at a time")

    @model_validator(mode="after")
    def _agree(self) -> Evaluate:
        fine = self.ks == sorted(set(self.ks))
        message = f"must rise without repeats, not {self.ks}"
        return _refuse(self, [] if fine else [(("ks",), message)])


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
        description="what the run is called; by default as the file is",
    )
    dataset: Component = Field(description="the images and their labels")
    images: Images = Field(default=Images(), description="how an image becomes an input")
    model: Model = Field(description="the network, such as {backbone: convnet}")
    loss: Component | None = Field(default=None, description="the loss; null: none")
    miner: Component | None = Field(
        default=None, description="picks the pairs or triplets that the loss sees; null: all"
    )
    sampler: Component | None = Field(default=None, description="decides what a batch is")
    optimizer: Optimizer | None = Field(default=None, description="how weights are updated")
    schedule: Schedule = Field(
        default=Constant(), description="how the learning rate changes over time"
    )
    train: Train = Field(description="how long to train, such as {iterations: 4000}")
    evaluate: Evaluate = Field(default=Evaluate(), description="what is measured")
    paper: Paper | None = Field(default=None, description="what the paper reports, to compare with")
    seed: int = Field(
        default=0, ge=0, lt=2**32, description="of the weights, the batches and the random crops"
    )
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|mps|cuda(:[0-9]+)?)$",
        description="auto, cpu, mps, cuda, or one GPU of several as cuda:0; auto: a GPU if any",
    )
    output: str = Field(
        default="runs", min_length=1, description="folder that holds the folders of the runs"
    )

    @model_validator(mode="after")
    def _agree(self) -> Config:
        return _refuse(self, _contradictions(self.model_dump()))

    def resolved(self) -> dict[str, Any]:
        """Return all of it as plain data, with every default, in the order of the schema."""
        return cast("dict[str, Any]", _plain(self.model_dump()))

    def digest(self) -> str:
        """Return 8 hex digits that two configs share if they ask for the same experiment.

        The seed is left out, as are names, targets to compare with, and what only says where and
        how fast it is done. What is measured counts: a finished run has nothing else to show.
        """
        data = _numbers_alike(_plain(self.model_dump(exclude=_INCIDENTAL)))
        text = json.dumps(data, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def run_name(self) -> str:
        """Return the name of the run's folder: ``<name>-<digest>-s<seed>``."""
        return f"{self.name}-{self.digest()}-s{self.seed}"


_INCIDENTAL: Any = {
    "name": True,
    "paper": True,
    "seed": True,
    "device": True,
    "output": True,
    "train": {"workers", "checkpoint_every", "log_every"},
    "evaluate": {"backend", "batch_size"},
}


def load(source: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a config and check all of it.

    Args:
        source: a path, or the name of a shipped config.
        overrides: settings such as ``loss.scale=32``, laid over the file all at once. The value is
            YAML: nothing after the ``=`` is null.

    Raises:
        UserError: with a line for every problem, as
            ``configs/x.yaml:12: loss.scael: unknown argument of ice; did you mean scale?``.
    """
    problems: list[Problem] = []
    path = _find(source, Path())
    if path is None:
        raise UserError(_not_found(str(source)))
    tree = _Files(problems).read(path, ())
    given = _read_overrides(overrides, problems)
    if tree is None:
        raise _error(problems)
    tree = merge(tree, given)
    data = {"name": path.stem, **tree.plain()}
    seen = {problem.keys for problem in problems}
    for keys, message in _check(data):
        if keys not in seen:  # one problem is enough for a place
            seen.add(keys)
            problems.append(Problem(tree.nearest(keys), keys, message))
    if problems:
        raise _error(problems)
    return Config.model_validate(data)


def dump(config: Config) -> str:
    """Return YAML that loads as an equal config."""
    return _yaml.dump(config.resolved())


def shipped() -> list[str]:
    """Return the names of the configs that come with the zoo."""
    return sorted(name for name in _library() if not name.startswith("base/"))


def schema() -> dict[str, Any]:
    """Return the JSON schema of a config; arguments of components are not part of it."""
    return Config.model_json_schema()


# ---- files


class _Files:
    """Reads a file and those that it extends, each of them once."""

    def __init__(self, problems: list[Problem]) -> None:
        self._problems = problems
        self._trees: dict[Path, Node | None] = {}

    def read(self, path: Path, chain: tuple[Path, ...]) -> Node | None:
        """Return a file laid over its parents; None, and a problem more, if that is impossible.

        Args:
            path: the file.
            chain: the files that led to it, each extending the next.
        """
        if path.resolve() not in self._trees:
            self._trees[path.resolve()] = self._read(path, (*chain, path))
        return self._trees[path.resolve()]

    def _read(self, path: Path, chain: tuple[Path, ...]) -> Node | None:
        own = _yaml.read(path, _shown(path), self._problems)
        if own is None:
            return None
        if not isinstance(own.value, dict):
            message = "must be a map of settings" if own.value is not None else "is empty"
            self._problems.append(Problem(own.place, (), message))
            return None
        _spell_out(own)
        extends = own.value.pop("extends", None)
        parents = [] if extends is None else self._parents(extends, chain)
        if None in parents:
            return None
        tree = functools.reduce(merge, [*cast("list[Node]", parents), own])
        return Node(tree.value, own.place)

    def _parents(self, extends: Node, chain: tuple[Path, ...]) -> list[Node | None]:
        nodes = extends.value if isinstance(extends.value, list) else [extends]
        if all(isinstance(node.value, str) for node in nodes):
            return [self._parent(node, chain) for node in nodes]
        message = f"must be the name of a file or a list of them, not {_show(extends.plain())}"
        self._problems.append(Problem(extends.place, ("extends",), message))
        return [None]

    def _parent(self, node: Node, chain: tuple[Path, ...]) -> Node | None:
        path = _find(node.value, chain[-1].parent)
        names = " -> ".join([*map(_shown, chain), _shown(path) if path else node.value])
        if path is None:
            message = f"{_not_found(node.value)} ({names})"
        elif path.resolve() in [parent.resolve() for parent in chain]:
            message = f"a file cannot extend itself: {names}"
        elif len(chain) > _MAX_PARENTS:
            message = f"more than {_MAX_PARENTS} files extend each other: {names}"
        else:
            return self.read(path, chain)
        self._problems.append(Problem(node.place, ("extends",), message))
        return None


def _find(source: str | Path, folder: Path) -> Path | None:
    """Return the file of that path, seen from a folder, or else the shipped one of that name."""
    if _what_is(folder / source) == "file":
        return folder / source
    return _library().get(_bare(source))


def _what_is(path: Path) -> Literal["file", "folder", "nothing"]:
    try:
        return "folder" if path.is_dir() else "file" if path.exists() else "nothing"
    except (OSError, ValueError):  # a name too long, a null byte
        return "nothing"


def _bare(source: str | Path) -> str:
    """Return what a shipped config would be called, from any way to write it."""
    name = Path(source).as_posix()
    return name.removeprefix("configs/").removesuffix(".yaml").removesuffix(".yml")


def _library() -> dict[str, Path]:
    """Return the shipped configs by name, those among them that are only to be extended."""
    folder = Path(importlib.import_module("zoo.configs").__path__[0])
    return {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for path in sorted(folder.rglob("*.yaml"))
    }


def _not_found(source: str) -> str:
    if _what_is(Path(source)) == "folder":
        return f"{source!r} is a folder; name a file in it"
    hint = did_you_mean(_bare(source), _library()) or f"; shipped are {', '.join(shipped())}"
    return f"there is no config {source!r}, neither as a file nor shipped{hint}"


def _shown(path: Path) -> str:
    """Return a path as messages show it: from here, if it is below."""
    path = Path(os.path.normpath(path))
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


# ---- overrides


def _read_overrides(texts: Sequence[str], problems: list[Problem]) -> Node:
    """Return the settings of the command line as one tree."""
    tree = Node({}, Place(_COMMAND_LINE))
    for text in texts:
        node = _read_override(text, problems)
        if node is not None:
            tree = _join(tree, node, (), problems)
    return tree


def _read_override(text: str, problems: list[Problem]) -> Node | None:
    place = Place(f"{_COMMAND_LINE}: {text}")
    path, equals, value = text.partition("=")
    keys = tuple(_key(part) for part in path.strip().split("."))
    if not equals or "" in keys:
        problems.append(Problem(place, (), "must be of the form key.key=value: loss.scale=32"))
        return None
    if keys == ("extends",):
        problems.append(Problem(place, keys, "only a file can extend another"))
        return None
    node = _yaml.parse(value, _COMMAND_LINE, problems, place, keys)
    if node is None:
        return None
    for key in reversed(keys):
        node = Node({key: node}, place)
    _spell_out(node)
    return node


def _key(part: str) -> Key:
    return int(part) if kind_of(part) == "int" and part.isdigit() else part


def _join(one: Node, other: Node, keys: Keys, problems: list[Problem]) -> Node:
    """Put two settings together, whichever came first; none may be given twice."""
    if not isinstance(one.value, dict) or not isinstance(other.value, dict):
        message = f"given twice: {str(one.place).removeprefix(_COMMAND_LINE + ': ')} as well"
        problems.append(Problem(other.place, keys, message))
        return one
    joined = dict(one.value)
    for key, node in other.value.items():
        at = (*keys, key)
        joined[key] = _join(joined[key], node, at, problems) if key in joined else node
    return Node(joined, one.place)


def _spell_out(tree: Node) -> None:
    """Make ``loss: ice`` of a tree ``loss: {name: ice}``."""
    for *sections, key in _NAMED:
        parent = tree
        for section in sections:
            if isinstance(parent.value, dict) and section in parent.value:
                parent = parent.value[section]
        node = parent.value.get(key) if isinstance(parent.value, dict) else None
        if node is not None and isinstance(node.value, str):
            parent.value[key] = Node({"name": node}, node.place)


# ---- checks


def _check(data: dict[str, Any]) -> Iterator[tuple[Keys, str]]:
    """Yield all that is wrong with a config; where a component is right, fill in its defaults."""
    for keys, kind in COMPONENTS.items():
        *sections, key = keys
        parent = _dig(data, sections)
        spec = _dig(data, keys)
        if not isinstance(spec, dict) or not isinstance(spec.get("name"), str):
            continue  # what pydantic will say
        if all(isinstance(argument, str) for argument in spec):
            found = list(_component_problems(kind, keys, spec))
            yield from found
            if not found:
                parent[key] = _with_defaults(kind, spec)
    try:
        Config.model_validate(data)
    except ValidationError as error:
        yield from map(_sentence, error.errors(include_url=False))
        yield from _contradictions(data)


def _contradictions(data: Any) -> Iterator[tuple[Keys, str]]:
    """Yield which settings do not go together, passing over those that are wrong by themselves.

    It is asked of a file as it stands, so that these problems show together with all others.
    """
    iterations = _dig(data, ("train", "iterations"))
    warmup = _dig(data, ("schedule", "warmup"))
    if type(iterations) is not int or iterations < 0:
        return
    if iterations == 0:
        if _dig(data, ("evaluate", "every")) is not None:
            yield ("evaluate", "every"), "makes no sense with train.iterations 0"
        return
    for part in _FOR_TRAINING:
        if _dig(data, (part,)) is None:
            message = f"missing; {iterations} iterations of training need one"
            yield (part,), message + " (train.iterations=0 evaluates the network as it is)"
    if type(warmup) is int and warmup > iterations:
        message = f"must be at most train.iterations, {iterations}, not {warmup}"
        yield ("schedule", "warmup"), message
    headless = _dig(data, ("model", "embedding_size"), 512) is None
    if headless and _dig(data, ("model", "freeze")) == "trunk":
        message = "leaves nothing to train where model.embedding_size is null"
        yield ("model", "freeze"), message


# ---- components


def _with_defaults(kind: Kind, spec: dict[str, Any]) -> dict[str, Any]:
    """Return a component with the defaults of its arguments, in the order of its signature.

    The saved config then says what was run, even if a default changes later. None is left out: it
    mostly stands for something that the class decides.
    """
    filled = {"name": spec["name"]}
    for parameter in registry.describe(kind, spec["name"]).parameters:
        plain = type(parameter.default) in (bool, int, float, str)
        if parameter.name in spec or (plain and parameter.name not in RUNTIME[kind]):
            filled[parameter.name] = parameter.default
    filled |= spec
    # A stranger's default may break the stranger's annotation.
    return spec if any(_component_problems(kind, (), filled)) else filled


def _component_problems(kind: Kind, keys: Keys, spec: dict[str, Any]) -> Iterator[tuple[Keys, str]]:
    """Yield what the registry has to say, in the words of a config."""
    arguments = {key: value for key, value in spec.items() if key != "name"}
    for argument, message in registry.problems(kind, spec["name"], arguments):
        inner = tuple((argument or "name").split("."))
        owner = _dig(spec, (*inner[:-1], "name"))
        missing = re.fullmatch(r"missing argument (\w+)", message)
        unknown = re.fullmatch(r"unknown argument .*?((?:; (?:did you|it takes) .*)?)", message)
        mismatch = re.fullmatch(r"\w+ must be (.+?), not .+", message, re.DOTALL)
        if missing:
            inner = (*inner[:-1], missing[1])
            dotted = _dotted((*keys, *inner))
            message = f"missing argument of {owner}; give it in the file, or as {dotted}=..."
        elif unknown:
            message = f"unknown argument of {owner}{unknown[1]}"
        elif mismatch:
            message = _must_be(_in_words(mismatch[1]), _dig(spec, inner))
        yield (*keys, *inner), message


def _in_words(annotation: str) -> str:
    """Return a type in the words of a config: ``float | None`` is "a number or null"."""
    words = {"float": "a number", "int": "a whole number", "bool": "true or false", "str": "text"}
    parts = re.sub(r"Optional\[(.+)\]", r"\1 | None", annotation).split(" | ")
    choices = [c for part in parts if part.startswith("Literal[") for c in part[8:-1].split(", ")]
    if choices:
        return "one of " + ", ".join([*choices, *["null"] * ("None" in parts)]).replace("'", "")
    return " or ".join((words | {"None": "null"}).get(part, part) for part in parts)


# ---- sentences


_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a map",
    "model_type": "a map",
    "model_attributes_type": "a map",
    "literal_error": "one of {expected}",
    "union_tag_invalid": "one of {expected_tags}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
}
_PATTERNS = {
    "name": "letters, digits and any of ._-, the first a letter or digit, to name a folder",
    "device": "auto, cpu, mps, cuda or cuda:<number>",
}


def _sentence(error: ErrorDetails) -> tuple[Keys, str]:
    """Return what pydantic found as keys of the config and a plain sentence."""
    loc, kind, value = error["loc"], error["type"], error["input"]
    context = error.get("ctx", {})
    keys = tuple(key for key in loc if key != "[key]")
    if len(loc) > 1 and loc[1] in [_tag(model) for model in _section(loc[:1])]:
        keys = keys[:1] + keys[2:]  # the second says which of the classes it was held against
    if kind == "union_tag_not_found":
        return (*keys, "name"), "missing; one of " + ", ".join(map(str, map(_tag, _section(loc))))
    if kind == "union_tag_invalid":
        keys, value = (*keys, "name"), value["name"]
    if kind == "missing" and isinstance(keys[-1], int):
        return keys[:-1], f"must have two values, not {len(value)}"
    if kind == "missing":
        (model,) = _section(loc[:-1])
        return keys, f"missing ({model.model_fields[str(keys[-1])].description})"
    if kind == "extra_forbidden":
        known = [name for model in _section(loc[:-1]) for name in model.model_fields]
        return keys, "unknown key" + _hint(str(keys[-1]), known)
    if kind == "invalid_key":
        return keys, "unknown key; keys are text here"
    if kind == "string_pattern_mismatch":
        return keys, _must_be(_PATTERNS[str(keys[-1])], value)
    if kind in ("too_long", "too_short", "string_too_long", "string_too_short"):
        return keys, _size_message(context, value)
    if kind == "contradiction":
        return keys, str(context["message"])
    if kind.startswith("model_") and keys in _NAMED:
        return keys, _must_be("a name, or a map with a name and arguments", value)
    if kind in _WANTED:
        wanted = _WANTED[kind].format_map({key: _in_short(context[key]) for key in context})
        return keys, _must_be(wanted, value)
    return keys, error["msg"]


def _in_short(value: Any) -> Any:
    """Return a limit without a needless ``.0``, and pydantic's "'avg' or 'max'" as "avg, max"."""
    if isinstance(value, str):
        return ", ".join(re.findall(r"'([^']*)'", value))
    return _numbers_alike(value)


def _must_be(wanted: str, value: object) -> str:
    """Return "must be x, not y", with what the user probably meant."""
    message = f"must be {wanted}, not {_show(value)}"
    if isinstance(value, str) and "number" in wanted:
        if kind_of(value) in ("int", "float"):
            return message + ", which is text; leave out the quotes"
        if kind_of(value.replace("_", "")) in ("int", "float"):
            return message + "; leave out the underscores"
    if isinstance(value, str) and wanted.startswith("one of "):
        return message + did_you_mean(value, wanted.removeprefix("one of ").split(", "))
    if wanted == "text" and isinstance(value, bool | int | float):
        return message + "; put it in quotes"
    return message


def _size_message(context: Mapping[str, Any], value: Any) -> str:
    bound, limit = ("most", "max_length") if "max_length" in context else ("least", "min_length")
    unit = "character" if isinstance(value, str) else "value"
    plural = "" if context[limit] == 1 else "s"
    return f"must have at {bound} {context[limit]} {unit}{plural}, not {len(value)}"


def _hint(key: str, known: Collection[str]) -> str:
    return did_you_mean(key, known) or "; there are " + ", ".join(known)


def _section(loc: tuple[Key, ...]) -> list[type[BaseModel]]:
    """Return what a section is checked against: a class, or several that its name decides on."""
    found: list[type[BaseModel]] = [Config]
    for key in loc:
        fields = [model.model_fields[str(key)] for model in found if str(key) in model.model_fields]
        inside = [model for field in fields for model in _models(field.annotation)]
        found = [model for model in found if _tag(model) == key] or inside
    return found


def _models(annotation: Any) -> list[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _tag(model: type[BaseModel]) -> str | None:
    """Return the name that a class of a section stands for."""
    field = model.model_fields.get("name")
    return next(iter(get_args(field.annotation)), None) if field else None


def _error(problems: list[Problem]) -> UserError:
    return UserError("\n".join(_line(problem) for problem in sorted(problems, key=_rank)))


def _line(problem: Problem) -> str:
    """Return a problem as one line; what a stranger's file holds cannot steer a terminal."""
    dotted = _dotted(problem.keys)
    if str(problem.place).startswith(f"{_COMMAND_LINE}: {dotted}="):
        dotted = ""
    text = ": ".join(filter(None, (str(problem.place), dotted, problem.message)))
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _rank(problem: Problem) -> tuple[bool, Place]:
    return problem.place.file.startswith(_COMMAND_LINE), problem.place


def _dotted(keys: Keys) -> str:
    return ".".join(map(str, keys))


def _show(value: object) -> str:
    """Return a value as a config would have it, cut short."""
    if isinstance(value, dict | list):
        return "a map" if isinstance(value, dict) else "a list"
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# ---- plain data


def _dig(data: Any, keys: Iterable[Key], default: Any = None) -> Any:
    """Return what plain data has at ``keys``."""
    for key in keys:
        if not isinstance(data, dict) or key not in data:
            return default
        data = data[key]
    return data


def _plain(data: Any) -> Any:
    """Return data with lists for tuples, and the name of a map before all else in it."""
    if isinstance(data, dict):
        first = {"name": data["name"]} if "name" in data else {}
        return {key: _plain(value) for key, value in (first | data).items()}
    return [_plain(value) for value in data] if isinstance(data, list | tuple) else data


def _numbers_alike(data: Any) -> Any:
    """Return data in which 64 and 64.0 are the same, and all keys are text."""
    if isinstance(data, dict):
        return {str(key): _numbers_alike(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_numbers_alike(value) for value in data]
    return int(data) if isinstance(data, float) and data.is_integer() else data
