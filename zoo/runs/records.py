"""What ``result.json`` and ``validation.json`` must hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from zoo.errors import UserError
from zoo.runs import identity
from zoo.support import yaml
from zoo.support.files import read_json
from zoo.support.text import printable

_NO_RESULT = "not the result of a run; delete it, or run again with --restart"
_K = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,9}$")]
_Share = Annotated[float, Field(ge=0, le=1)]
_Measure = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,29}$")]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


def _shallow(data: dict[str, Any]) -> dict[str, Any]:
    """Refuse data nested deeper than any config, before something recurses into it."""
    level: list[Any] = [data]
    for _ in range(yaml.MAX_DEPTH):
        inner = [
            x.values() if isinstance(x, dict) else x for x in level if isinstance(x, dict | list)
        ]
        level = [value for values in inner for value in values]
    if level:
        raise ValueError("nested too deeply")
    return data


class _Data(_Part):
    name: str
    fingerprint: str = ""
    folder: str = ""
    classes: int | None = None
    images: int | None = None


class _Seconds(_Part):
    training: float = Field(ge=0, le=1e12)
    evaluation: float = Field(default=0.0, ge=0, le=1e12)


class _Paper(_Part):
    recall: dict[_K, Annotated[float, Field(ge=0, le=100)] | None] = {}


class _Validation(_Part):
    share: Annotated[float, Field(gt=0, lt=1)]
    recall: dict[_K, _Share] = Field(min_length=1)


class _Selection(_Part):
    settings: dict[str, str]
    among: dict[str, list[str]]


class TrainedRecord(_Part):
    """The record of every run that has been trained, tested or not."""

    run: str
    config: str
    digest: str
    seed: int
    dataset: _Data
    loss: str | None
    backbone: str
    embedding_size: int
    seconds: _Seconds
    paper: _Paper | None = None
    settings: Annotated[dict[str, Any], AfterValidator(_shallow)] = {}
    iterate: str = "last"
    iteration: int | None = None
    iterations: int | None = None
    selection: _Selection | None = None
    files: dict[str, str] = {}


class ResultRecord(TrainedRecord):
    """The part of a result that tables use; a result may have more keys."""

    recall: dict[_K, _Share] = Field(min_length=1)
    recall_of_features: dict[_K, _Share] = {}
    measures: dict[_Measure, Annotated[float, Field(ge=-1, le=1)]] = {}  # AMI may be below 0
    validation: _Validation | None = None
    plugins: dict[str, str] = {}


class CandidateRecord(TrainedRecord):
    """The part that choices use: a run that was measured on held-out classes, tested or not."""

    validation: _Validation


def read(path: Path, model: type[TrainedRecord]) -> dict[str, Any]:
    """Return a record; raise a UserError if it is not one, or not as the run wrote it."""
    try:
        record: dict[str, Any] = read_json(path)
        json.dumps(record, ensure_ascii=False).encode()  # an escape may be half a character
        model.model_validate(record)
        identity.check_seal(record)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))[:60] or "the whole file"
        raise _no_result(path, f"{where}: {first['msg']}") from error
    except UnicodeEncodeError as error:
        raise _no_result(path, "a text in it has half of a character") from error
    except (OSError, ValueError, RecursionError) as error:
        raise _no_result(path, error) from error
    return record


def _no_result(path: Path, why: object) -> UserError:
    """Return the error about a file; escaped, since a foreign file may hold control characters."""
    return UserError(printable(f"{path}: {_NO_RESULT} ({why})"))
