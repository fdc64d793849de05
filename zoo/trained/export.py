"""A trained network as a file that needs no zoo: ONNX, or a program of torch.export.

::

    import zoo

    exported = zoo.export.export("ice_birds", "birds.onnx")
    exported.difference  # the largest, over all images that were tried

The file takes uint8 pixels in RGB, returns embeddings of length 1, and includes the preprocessing
of the backbone. Images are scaled and cropped before that: a JSON file beside it says how, and
:func:`snippet` does it in Python.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib
import io
import json
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zoo import __version__
from zoo.base import Space
from zoo.config.schema import Images
from zoo.data.pipeline import centre_crops
from zoo.errors import UserError, did_you_mean, one_of
from zoo.evaluation import spaces
from zoo.network.embedder import Embedder
from zoo.progress import Reporter
from zoo.support.checked import checked
from zoo.support.files import check_folder, one_at_a_time, read_json, replace_file, writing
from zoo.support.text import printable
from zoo.trained.network import Trained, load

Format = Literal["onnx", "torch"]
FORMATS: tuple[Format, ...] = get_args(Format)
ENDINGS: dict[Format, str] = {"onnx": ".onnx", "torch": ".pt2"}

TOLERANCE = 1e-5
"""How much a number of an embedding may differ, as float32 sums in another order."""

_TIE = 1e-5  # neighbours whose cosines differ by less may change places
_REAL, _RANDOM = 48, 16  # numbers of images that the file is tried on
_LEAST_OPSET = 18  # the lowest that torch writes
_LEAST_TORCH = (2, 7)  # 2.5 and 2.6 fail on a batch of any size, with every onnxscript
_STYLE = re.compile(r"\x1b\[[0-9;]*m")  # torch colours its messages
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_Run: TypeAlias = Callable[[NDArray[np.uint8]], NDArray[np.float32]]


class ExportError(Exception):
    """The network could not be exported, or the exported file computes something else."""


class Difference(NamedTuple):
    """How an exported file differs from the network.

    Attributes:
        largest: the largest difference of a number of an embedding.
        images: how many were tried.
        real: how many of them are from the test split; the others are random.
        moved: how many have another nearest neighbour, not counting ties.
    """

    largest: float
    images: int
    real: int
    moved: int

    def __str__(self) -> str:
        neighbours = f"{self.images - self.moved} of {self.images} have the same nearest neighbour"
        kinds = f"{self.real} of the test split, {self.images - self.real} random"
        return f"largest difference {self.largest:.1e}; {neighbours} ({kinds})"


class Exported(NamedTuple):
    """An exported network.

    Attributes:
        path: the file.
        description: the content of the JSON file beside it.
        difference: from the network.
    """

    path: Path
    description: dict[str, Any]
    difference: Difference

    def __repr__(self) -> str:
        return printable(f"<Exported {self.path}: {self.difference}>")


@checked
def export(
    run: str | Path | Trained,
    path: str | Path,
    *,
    format: str | None = None,
    opset: int | None = None,
    reporter: Reporter | None = None,
) -> Exported:
    """Write a network to a file, and compare the embeddings of the file with the network's.

    The file is tried, in batches of several sizes, on images of the test split, if they can be
    read, and on random ones. It is not written if an embedding differs by more than ``TOLERANCE``
    or an image has another nearest neighbour.

    Args:
        run: its folder, its name in ``runs/``, or the network itself.
        path: of the file; its description is written to ``<path>.json``.
        format: "onnx" or "torch"; by default from the ending of the path, .onnx or .pt2.
        opset: version of ONNX's operators; by default the one that torch prefers.
        reporter: shows progress; by default on stderr.

    Raises:
        UserError: no such run or format, the file cannot be written, or a package is missing.
        ExportError: the network cannot be exported, or the file differs from it.
    """
    reporter = reporter or Reporter()
    place = Path(path)
    chosen = _check_format(place, format, opset)
    _check_place(place)
    model = run if isinstance(run, Trained) else load(run, "cpu")
    network = _Network(model.embedder)
    real = _test_images(model)
    sides = _sides(model, real)
    reporter.say("exporting, which may take a minute")
    with _explained(model), _quiet():
        # Two images: torch would take a batch of one for a constant.
        example = torch.zeros(2, 3, *sides, dtype=torch.uint8)
        written = _WRITE[chosen](network, example, opset)
        read = _READ[chosen](written)
        difference = _compare(network, read, _trial_images(real, sides), len(real))
    _check_difference(difference, place)
    description = _describe(model, chosen, sides, difference)
    description["sha256"] = hashlib.sha256(written).hexdigest()
    with writing(place):
        _save(place, written, json.dumps(description, indent=2) + "\n")
    return Exported(place, description, difference)


def beside_of(place: Path) -> Path:
    """Return the path of the description of an exported network: each format has its own."""
    return place.with_name(f"{place.name}.json")


def _save(place: Path, network: bytes, description: str) -> None:
    """Write both files. Even if it is killed, this leaves no description of another network."""
    beside = beside_of(place)

    def write_network(file: BinaryIO) -> None:
        _write_out(file, network)
        beside.unlink(missing_ok=True)  # of the network that is about to be replaced

    def write_description(file: BinaryIO) -> None:
        _write_out(file, description.encode())
        replace_file(place, write_network)

    with one_at_a_time(place.absolute().parent):
        replace_file(beside, write_description)


def _write_out(file: BinaryIO, data: bytes) -> None:
    """Write and flush to the disk, which may be full, before anything is replaced."""
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


@checked
def snippet(exported: Exported) -> str:
    """Return a few lines of Python that embed a photograph with the file, without the zoo."""
    what = ", of length 1" if "length" in exported.description["output"] else ""
    if exported.description["format"] == "onnx":
        package = "onnxruntime"
        run = [
            "session = onnxruntime.InferenceSession(file)",
            f'embeddings = session.run(None, {{"images": pixels}})[0]  # float32 (1, d){what}',
        ]
    else:
        package = "torch"
        run = [
            "network = torch.export.load(io.BytesIO(file)).module()",
            f"embeddings = network(torch.tensor(pixels))  # float32 (1, d){what}",
        ]
    lines = [
        "import hashlib",
        *["import io"] * (package == "torch"),
        "from pathlib import Path",
        "",
        "import numpy as np",
        f"import {package}",
        "from PIL import Image, ImageOps",
        "",
        f"file = Path({str(exported.path)!r}).read_bytes()",
        f'digest = "{exported.description["sha256"]}"',
        'assert hashlib.sha256(file).hexdigest() == digest, "these lines are of another file"',
        'photo = ImageOps.exif_transpose(Image.open("photo.jpg"))',
        *_DEEP_GRAY,
        'paper = Image.new("RGBA", photo.size, "white")',
        'image = Image.alpha_composite(paper, photo.convert("RGBA")).convert("RGB")',
        *_preparation(**exported.description["preparation"]),
        "pixels = np.asarray(image).transpose(2, 0, 1)[None]  # uint8 (1, 3, H, W)",
        *run,
    ]
    return "\n".join(lines) + "\n"


_DEEP_GRAY = (  # as zoo.data.decoding.to_rgb does
    'if photo.mode.startswith(("I", "F")):  # gray of more than 8 bits: scaled, not clipped',
    "    gray = np.nan_to_num(np.array(photo, np.float32), posinf=0, neginf=0)",
    "    low, high = float(gray.min()), float(gray.max())",
    '    whites = [1, 255, 65535] if photo.mode == "F" else [65535]',
    "    fitting = [white for white in whites if low >= 0 and high <= white]",
    "    low, white = (0, fitting[0]) if fitting else (low, high - low or 1)",
    "    photo = Image.fromarray(((gray - low) * (255 / white) + 0.5).astype(np.uint8))",
)


def _preparation(
    resize: int | None, keep_aspect: bool, crop: int | None, **_: object
) -> Iterator[str]:
    """Yield the lines that scale and crop ``image``."""
    in_proportion = "image = image.resize([{0} * side // short for side in image.size], {1})"
    bilinear = "Image.Resampling.BILINEAR"
    if resize and keep_aspect:
        yield "short = min(image.size)"
        yield in_proportion.format(resize, bilinear)
    elif resize:
        yield f"image = image.resize(({resize}, {resize}), {bilinear})"
    if crop:
        if not resize or resize < crop:
            yield "short = min(image.size)"
            yield f"if short < {crop}:"
            yield "    " + in_proportion.format(crop, bilinear)
        yield f"left, top = (round((side - {crop}) / 2) for side in image.size)"
        yield f"image = image.crop((left, top, left + {crop}, top + {crop}))"


class _Network(nn.Module):
    """Pixels, uint8 (N, 3, H, W) in RGB, to embeddings of length 1, on the CPU."""

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        # One memory layout: channels_last would only add operations to the file.
        own: Any = copy.deepcopy(embedder)
        self.embedder: Embedder = own.to(device="cpu", memory_format=torch.contiguous_format)
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        return self.embedder.points(self.embedder.combined(self.embedder(images)))


def _check_format(place: Path, format: str | None, opset: int | None) -> Format:
    """Return the format; check that the packages it needs are installed."""
    by_ending = {ending: name for name, ending in ENDINGS.items()}
    if format is None and place.suffix not in by_ending:
        endings = one_of(list(by_ending))
        raise UserError(printable(f"{place}: end it in {endings}, or give a format"))
    chosen = by_ending[place.suffix] if format is None else format
    if chosen not in FORMATS:
        hint = did_you_mean(chosen, FORMATS)
        raise UserError(f"format {printable(repr(chosen))}: give {one_of(FORMATS)}{hint}")
    if chosen == "torch" and opset is not None:
        raise UserError("opset is a setting of ONNX; leave it out for torch.export")
    if opset is not None and opset < _LEAST_OPSET:
        raise UserError(f"opset {opset}: give {_LEAST_OPSET} or more, or leave it out")
    if chosen == "onnx" and _torch() < _LEAST_TORCH:
        least = ".".join(map(str, _LEAST_TORCH))
        raise UserError(
            f"ONNX needs torch {least} or newer, and this is {torch.__version__}; .pt2 still works"
        )
    for package in _PACKAGES if chosen == "onnx" else ():
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise UserError(
                f"ONNX needs {package}, which is not installed: pip install 'metric-zoo[export]'"
            ) from error
    if opset is not None and opset > (most := _newest_opset()):
        raise UserError(f"opset {opset}: give {_LEAST_OPSET} to {most}, or leave it out")
    return chosen


def _newest_opset() -> int:
    """Return the newest opset that the installed onnx knows."""
    import onnx

    newest: int = onnx.defs.onnx_opset_version()
    return newest


def _torch() -> tuple[int, ...]:
    """Return the first two numbers of torch's version."""
    return tuple(map(int, torch.__version__.split(".")[:2]))


def _check_place(place: Path) -> None:
    """Refuse, before minutes of work, a place that cannot be written to."""
    description = beside_of(place)
    for path in (place, description):
        check_folder(path)
    if os.path.lexists(description) and not _is_description(description):
        shown = printable(str(description))
        raise UserError(f"{shown}: would be replaced, and is not a description; give another name")


def _is_description(path: Path) -> bool:
    try:
        found = read_json(path)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and {"format", "input", "preparation"} <= found.keys()


def _test_images(model: Trained) -> Tensor:
    """Return some images of the test split, prepared for the network; none if it is missing."""
    try:
        data = model.test_split()
        some = np.linspace(0, len(data) - 1, min(_REAL, len(data))).astype(int)
        images = centre_crops(data, model.config.images, some.tolist())
    except UserError:
        return torch.empty(0, 3, 0, 0, dtype=torch.uint8)
    return images.expand(-1, 3, -1, -1)  # gray becomes RGB


def _sides(model: Trained, real: Tensor) -> tuple[int, int]:
    """Return height and width of the images that the network gets."""
    images = model.config.images
    side = images.crop or images.resize
    if side is not None:
        return side, side
    if not len(real):
        raise UserError(
            f"{model.folder.path}: its images were used in their own size, which is unknown, as "
            "they are missing; restore them"
        )
    return real.shape[2], real.shape[3]


def _trial_images(real: Tensor, sides: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the real images, and random ones made of large and small patches."""
    rng = np.random.default_rng(0)
    random = []
    for i in range(_RANDOM):
        patches = [-(-side // 2 ** (i % 5)) for side in sides]
        coarse = rng.integers(0, 256, (3, *patches), np.uint8)
        fine = coarse.repeat(2 ** (i % 5), 1).repeat(2 ** (i % 5), 2)
        random.append(fine[:, : sides[0], : sides[1]])
    drawn = np.stack(random)
    return np.concatenate([real.numpy(), drawn]) if len(real) else drawn


def _write_onnx(network: nn.Module, example: Tensor, opset: int | None) -> bytes:
    program = torch.onnx.export(
        network,
        (example,),
        dynamo=True,
        input_names=["images"],
        output_names=["embeddings"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        opset_version=opset,
        verbose=False,
    )
    assert program is not None
    if opset is not None:
        _check_opset(opset, program.model.opset_imports[""])
    written: bytes = program.model_proto.SerializeToString()
    return written


def _check_opset(wanted: int, written: int) -> None:
    """Refuse another opset than the requested one; torch only logs that it cannot convert."""
    if wanted != written:
        raise UserError(f"opset {wanted} is not possible: torch wrote {written}; leave it out")


def _write_torch(network: nn.Module, example: Tensor, _: int | None) -> bytes:
    shapes = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(network, (example,), dynamic_shapes=shapes)
    buffer = io.BytesIO()  # if the disk is full, torch ends the process
    torch.export.save(program, buffer)
    return buffer.getvalue()


def _read_onnx(written: bytes) -> _Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(written, providers=["CPUExecutionProvider"])

    def run(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        found: Any = session.run(None, {"images": images})
        return np.asarray(found[0], np.float32)

    return run


def _read_torch(written: bytes) -> _Run:
    module = torch.export.load(io.BytesIO(written)).module()
    return lambda images: module(torch.from_numpy(images)).numpy()


_WRITE: dict[Format, Callable[[nn.Module, Tensor, int | None], bytes]] = {
    "onnx": _write_onnx,
    "torch": _write_torch,
}
_READ: dict[Format, Callable[[bytes], _Run]] = {"onnx": _read_onnx, "torch": _read_torch}


@torch.no_grad()
def _compare(network: _Network, written: _Run, images: NDArray[np.uint8], real: int) -> Difference:
    """Compare both on all images, in batches of one image, of five, and of the rest."""
    parts = [images[:1], images[1:6], images[6:]]
    theirs = np.concatenate([written(np.ascontiguousarray(part)) for part in parts])
    own = np.concatenate([network(torch.from_numpy(part)).numpy() for part in parts])
    if own.shape != theirs.shape:
        raise ExportError(f"it returns embeddings of shape {theirs.shape}, not {own.shape}")
    largest = float(np.abs(own.astype(np.float64) - theirs).max())
    space = network.embedder.space
    before, after = (_cosines(vectors, space) for vectors in (own, theirs))
    chosen = np.take_along_axis(before, after.argmax(1)[:, None], 1)[:, 0]
    moved = int((before.max(1) - chosen > _TIE).sum())
    return Difference(largest, len(images), real, moved)


def _cosines(vectors: NDArray[np.float32], space: Space | None) -> NDArray[np.float64]:
    """Return how near vectors are to each other, as a search compares them."""
    exact = vectors.astype(np.float64)
    queries, gallery = (
        (exact, exact) if space is None else spaces.sides_of(torch.from_numpy(exact), space)
    )
    cosines: NDArray[np.float64] = queries @ gallery.T
    np.fill_diagonal(cosines, -np.inf)
    return cosines


def _check_difference(difference: Difference, place: Path) -> None:
    if not difference.largest <= TOLERANCE or difference.moved:  # NaN is not below either
        raise ExportError(
            f"{place}: not written, as it differs from the network: {difference}; allowed is "
            f"{TOLERANCE:.0e}"
        )


def _describe(
    model: Trained, format: Format, sides: tuple[int, int], difference: Difference
) -> dict[str, Any]:
    images = model.config.images
    return {
        "format": format,
        "input": {
            "name": "images",
            "type": "uint8",
            "shape": ["batch", 3, *sides],
            "channels": "RGB",
            "values": [0, 255],
        },
        "output": {
            "name": "embeddings",
            "type": "float32",
            "shape": ["batch", model.embedding_size],
            **_compared_by(model),
        },
        "preparation": {
            "resize": images.resize,
            "keep_aspect": images.keep_aspect,
            "interpolation": "bilinear, antialiased (Pillow's BILINEAR)",
            "crop": images.crop,
            "crop_at": "centre",
            "steps": _steps(images),
        },
        "run": model.folder.path.resolve().name,
        "digest": model.config.digest(),
        "network": model.network_digest(),
        "versions": {"metric-zoo": __version__, "torch": str(torch.__version__)},
        "checked": {
            "largest_difference": difference.largest,
            "tolerance": TOLERANCE,
            "images": difference.images,
            "of_the_test_split": difference.real,
        },
    }


def _compared_by(model: Trained) -> dict[str, Any]:
    """Return how two embeddings are compared."""
    spec = model.config.model.space
    return {"length": 1} if spec is None else {"space": spec.model_dump()}


def _steps(images: Images) -> list[str]:
    steps = [
        "turn upright by EXIF",
        "scale gray of more than 8 bits to 8: 65535 is white",
        "convert to RGB, transparency over white",
    ]
    if images.resize and images.keep_aspect:
        steps.append(f"scale the shorter side to {images.resize} pixels, the other in proportion")
    elif images.resize:
        steps.append(f"scale to {images.resize} x {images.resize} pixels, whatever the shape")
    if images.crop:
        if not images.resize or images.resize < images.crop:
            steps.append(f"if the shorter side is below {images.crop} pixels, scale it to that")
        steps.append(f"crop {images.crop} x {images.crop} pixels at the centre")
    return steps


@contextlib.contextmanager
def _explained(model: Trained) -> Iterator[None]:
    """Turn any exception of torch into a message that this network cannot be exported."""
    try:
        yield
    except ExportError:
        raise
    except Exception as failed:
        error = failed.__cause__ if _is_of_tracing(failed.__cause__) else failed
        if isinstance(error, UserError):
            raise
        name = model.config.model.backbone.name
        reason = " ".join(_STYLE.sub("", str(error)).split())[:300]
        raise ExportError(f"{name} cannot be exported: {type(error).__name__}: {reason}") from error


def _is_of_tracing(error: BaseException | None) -> bool:
    """Return whether an exception comes from the tracing of a network by torch."""
    return type(error).__module__.startswith(("torch.fx", "torch._", "torch.export", "torch.onnx"))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress what torch's exporters print for their developers."""
    levels = {logger: logger.level for logger in map(logging.getLogger, ("torch", "onnxscript"))}
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
