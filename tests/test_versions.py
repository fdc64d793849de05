"""The lowest versions that pyproject.toml names, as CI installs them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys

import pytest
from places import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def load_tool():
    path = ROOT / "tools" / "lowest_versions.py"
    spec = importlib.util.spec_from_file_location("lowest_versions", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = load_tool()


def project(*needs, **extras):
    return {"name": "me", "dependencies": list(needs), "optional-dependencies": extras}


def test_a_lower_bound_becomes_the_version():
    one = project("a>=1.2", "b.c >= 3, <4", "d-e>=5; python_version < '3.11'", test=["f[g]>=6"])
    wanted = ["a==1.2", "b.c==3", "d-e==5; python_version < '3.11'", "f==6"]
    assert TOOL.lowest_versions(one) == wanted


def test_the_extras_that_an_extra_names_are_followed():
    one = project("a>=1", test=["me[x, y]", "b>=2"], x=["c>=3"], y=["me[x]"], z=["d>=4"])
    assert TOOL.lowest_versions(one) == ["a==1", "b==2", "c==3"]


@pytest.mark.parametrize("requirement", ["a", "a<2", "a==2", "a; python_version < '3.11'"])
def test_a_requirement_without_a_lowest_version_is_an_error(requirement):
    with pytest.raises(ValueError, match=f"^{re.escape(requirement)}: has no lowest version"):
        TOOL.lowest_versions(project(requirement, test=[]))


def test_everything_that_the_tests_import_has_a_lowest_version():
    pins = {re.split("==", pin)[0] for pin in TOOL.lowest_versions(PROJECT)}
    wanted = {re.split(r"[><=;\[ ]", need)[0] for need in PROJECT["dependencies"]}
    assert wanted | {"pytest", "faiss-cpu", "onnx", "plotly"} <= pins
    assert PROJECT["name"] not in pins


def test_what_is_installed_here_is_not_older():
    from packaging.version import Version

    for pin in TOOL.lowest_versions(PROJECT):
        name, _, lowest = pin.partition(";")[0].partition("==")
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # an extra that is not installed here
        assert Version(installed) >= Version(lowest), name
