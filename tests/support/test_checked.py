"""Arguments judged by their annotations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from zoo.errors import UserError
from zoo.support.checked import Between, Count, Share, checked, choose


@checked
def call(
    *several: str | Path,
    k: Count = 1,
    share: Share = 0.5,
    kind: Literal["one", "other"] = "one",
    names: Sequence[str] = (),
    numbers: Iterable[int] = (),
    table: Mapping[str, Sequence[int]] | None = None,
    row: NDArray[np.integer[Any]] | None = None,
    floats: NDArray[np.float32] | None = None,
    flag: bool = False,
    limit: Annotated[int, Between(0, 9)] | None = None,
    anything: Any = None,
    unknown: NotThere = None,  # noqa: F821 - what type checkers alone can look up
):
    return {key: value for key, value in locals().items() if key != "several"}, several


def test_what_fits_is_passed_on():
    given, several = call("a", Path("b"), k=2, table={"x": [1]}, anything=object, unknown=3)
    assert several == ("a", Path("b"))
    assert (given["k"], given["table"], given["unknown"]) == (2, {"x": [1]}, 3)


def test_other_kinds_become_what_is_promised():
    given, _ = call(k=np.int64(3), numbers=(n for n in (1, 2)), names=iter("ab"), flag=np.True_)
    assert type(given["k"]) is int
    assert (given["numbers"], given["names"], given["flag"]) == ([1, 2], ["a", "b"], True)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"k": 0}, r"call\(\): k must be a whole number 1 or more, not 0"),
        ({"k": 0.5}, "not 0.5"),
        ({"k": True}, "not True"),
        ({"k": "\x1b"}, r"not '\\x1b'"),
        (
            {"k": 10**5000, "limit": 10**5000},
            "from 0 to 9 or None, not a whole number of thousands",
        ),
        ({"share": float("nan")}, "a number from 0 to 1, not nan"),
        ({"kind": "othr"}, "'one' or 'other', not 'othr'; did you mean other"),
        ({"names": "abc"}, "a list in which each item is text, not 'abc'"),
        ({"names": {"a"}}, "not a set"),
        (
            {"numbers": [1, None]},
            r"a list in which each item is a whole number; numbers\[1\] is None$",
        ),
        ({"names": iter(["a", 1])}, r"a list in which each item is text; names\[1\] is 1$"),
        ({"names": [int]}, r"text; names\[0\] is the class int$"),
        (
            {"table": {1: []}},
            "a dict in which each key is text and each value is a list in which each item is a "
            "whole number or None; table has the key 1$",
        ),
        ({"table": {"a": 1}}, r"; table\['a'\] is 1$"),
        ({"table": {"a": [0, "b"]}}, r"; table\['a'\]\[1\] is 'b'$"),
        ({"table": 1}, "whole number or None, not 1$"),
        ({"row": np.zeros(3)}, r"array of whole numbers or None, not float64 of shape \(3,\)"),
        ({"row": [1, 2]}, "not a list"),
        ({"flag": 1}, "True or False, not 1"),
        ({"names": int}, "not the class int"),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(wrong, said):
    with pytest.raises(UserError, match=said):
        call(**wrong)


@pytest.mark.parametrize("wrong", [3, None, b"a"])
def test_each_of_several_is_judged(wrong):
    with pytest.raises(UserError, match=rf"several must be .*; several\[1\] is {wrong}$"):
        call("a", wrong)


def test_a_call_that_python_refuses_is_refused_by_python():
    with pytest.raises(TypeError, match=r"call\(\) got an unexpected keyword argument 'kk'"):
        call(kk=1)


def test_choose_names_what_was_meant():
    with pytest.raises(UserError, match="no format 'htm'; did you mean html"):
        choose("format", "htm", ["html", "csv"])
    with pytest.raises(UserError, match="no format 'x'; there are html, csv"):
        choose("format", "x", ["html", "csv"])
