"""The conditions under which experiments are comparable: same network, size, images."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from zoo.config.schema import dig
from zoo.tables import differences

_IN_TRAINING = ("pad", "random_crop", "scale", "mirror")  # random changes of training images only
_UNKNOWN = {  # (settings of this result known, of the others known)
    (False, True): "may not be comparable with the others: its settings are not recorded",
    (True, False): "may not be comparable with the others, whose settings are not recorded",
}


def notes(
    results: Sequence[Mapping[str, Any]],
    reference: Sequence[Mapping[str, Any]] = (),
    varied: Collection[str] = (),
) -> list[str | None]:
    """Return for each experiment why it is not comparable with most; None if it is.

    The network, the embedding size, the preparation of images and the images themselves must be
    the same; the training may differ. If two sets of conditions are equally frequent, the first
    one counts.

    Args:
        results: the result of one run of each experiment.
        reference: the results whose majority decides; by default all.
        varied: settings that the table is about, which may differ.
    """
    if not results:
        return []
    usual = _most(reference or results, varied)
    return [_note(result, usual, varied) for result in results]


def value(result: Mapping[str, Any], path: str) -> Any:
    """Return a setting by its dotted path; a component's name; None if it is not known."""
    facts = {
        "loss": result["loss"],  # null without training, whatever the settings are
        "model.backbone": result["backbone"],
        "model.embedding_size": result["embedding_size"],
    }
    if path in facts:
        return facts[path]
    found = dig(result.get("settings") or {}, path.split("."))
    return found.get("name") if isinstance(found, dict) else found


def _most(results: Sequence[Mapping[str, Any]], varied: Collection[str]) -> Mapping[str, Any]:
    """Return a result with the conditions that most have."""
    texts = [json.dumps([_known(r), _of(r, varied)], sort_keys=True) for r in results]
    (most, _), *_ = Counter(texts).most_common(1)
    return results[texts.index(most)]


def _note(
    result: Mapping[str, Any], usual: Mapping[str, Any], varied: Collection[str]
) -> str | None:
    known = _known(result), _known(usual)
    if not all(known):  # then only what every result holds can be compared
        result, usual = ({**one, "settings": None} for one in (result, usual))
    found = differences.between(_of(result, varied), _of(usual, varied))
    if found:
        return f"not comparable with the others: {', '.join(found)}"
    return _UNKNOWN.get(known)


def _known(result: Mapping[str, Any]) -> bool:
    return bool(result.get("settings"))


def _of(result: Mapping[str, Any], varied: Collection[str]) -> dict[str, Any]:
    """Return the conditions, in the shape of settings."""
    settings = result.get("settings") or {}
    images, model = (dict(_map(settings.get(part))) for part in ("images", "model"))
    if not result["loss"]:
        images = {key: images[key] for key in images if key not in _IN_TRAINING}
        model.pop("freeze", None)
    arguments = {key: _file_name(v) for key, v in _map(model.get("backbone")).items()}
    model["backbone"] = {**arguments, "name": result["backbone"]}
    model["embedding_size"] = result["embedding_size"]
    model.setdefault("space", None)  # missing where images are compared by cosines
    model.pop("slices", None)  # how a loss sees the embedding, which is compared as a whole
    data = {"fingerprint": result["dataset"].get("fingerprint") or None}
    found: dict[str, Any] = {"dataset": data, "model": model, "images": images}
    for path in varied:
        *outer, last = path.split(".")
        _map(dig(found, outer)).pop(last, None)
    return found


def _file_name(value: Any) -> Any:
    """Return the last part of a path: another machine has the same file in another folder."""
    return re.split(r"[/\\\\]", value)[-1] if isinstance(value, str) else value


def _map(value: Any) -> dict[str, Any]:
    """Return a map unchanged, and an empty map for anything else that a result may hold."""
    return value if isinstance(value, dict) else {}
