"""The rule of the house, and that what is on disk is what is installed."""

from __future__ import annotations

import ast
import importlib
import re
import sys

import pytest
from places import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = SETTINGS["tool"]["setuptools"]["package-dir"]
COMPONENTS = ("losses", "miners", "models", "datasets")


def imports(path):
    """Yield (module, level) of every import of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.level


def sources(folder):
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found
    return found


@pytest.mark.parametrize("folder", COMPONENTS)
def test_a_component_imports_the_core_absolutely_and_its_own_folder_relatively(folder):
    for path in sources(folder):
        for module, level in imports(path):
            assert level <= 1, f"{path}: climbs out of its folder"
            top = module.split(".")[0]
            assert level or top not in COMPONENTS, f"{path}: import zoo.{module} under its own name"
            inner = module.removeprefix("zoo.").split(".")[0] if top == "zoo" and not level else ""
            assert inner not in COMPONENTS, f"{path}: imports a component folder, {module}"


def test_the_core_reaches_components_only_through_the_registry():
    for path in sources("zoo"):
        for module, level in imports(path):
            inner = module.removeprefix("zoo.").split(".")[0]
            assert not (module.startswith("zoo.") and inner in COMPONENTS), f"{path}: {module}"
            assert not (level and module.split(".")[0] in COMPONENTS), f"{path}: {module}"


def test_every_package_on_disk_is_listed_and_every_listed_one_is_on_disk():
    on_disk = set()
    for package, folder in FOLDERS.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT / folder).parts
            on_disk.add(".".join((package, *parts)))
    assert on_disk == set(SETTINGS["tool"]["setuptools"]["packages"])


@pytest.mark.parametrize("folder", [*COMPONENTS, "configs"])
def test_a_folder_refuses_another_name(folder, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.delitem(sys.modules, folder, raising=False)
    with pytest.raises(ImportError, match=f"import zoo.{folder}, not {folder}"):
        importlib.import_module(folder)


@pytest.mark.parametrize("folder", COMPONENTS)
def test_a_component_is_one_file_and_one_line(folder):
    table = importlib.import_module(f"zoo.{folder}").BUILTIN
    modules = [v.split(":")[0].rsplit(".", 1)[1] for kind in table.values() for v in kind.values()]
    public = {p.stem for p in sources(folder) if not p.stem.startswith("_")}
    assert public == set(modules)


def test_the_version_is_one():
    import zoo

    assert SETTINGS["project"]["version"] == zoo.__version__
    newest = re.search(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None
    assert newest[1] == zoo.__version__


def test_test_files_have_unique_names():
    names = [p.name for p in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))
