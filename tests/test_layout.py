"""The rule of the house, and that what is on disk is what is installed."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys

import pytest
from places import ROOT

import zoo

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = SETTINGS["tool"]["setuptools"]["package-dir"]
COMPONENTS = ("losses", "miners", "models", "datasets", "trackers")


LAYERS = {
    "support": "",
    "parallel": "support",
    "registry": "parallel support",
    "evaluation": "parallel support",
    "config": "registry evaluation support",
    "checks": "registry evaluation support",
    "data": "config registry parallel support",
    "runs": "config registry support",
    "network": "registry support",
    "training": "network data runs config registry evaluation parallel support",
    "comparing": "data runs support",
    "trained": "training network data runs config evaluation parallel support",
    "tables": "comparing runs config evaluation support",
    "runner": "tables training runs config registry parallel support",
    "search": "trained training data runs evaluation support",
    "report": "trained tables comparing runs evaluation support",
    "plans": "runner training network comparing runs config registry support",
    "cli": "plans search report checks runner trained tables comparing training data runs config "
    "registry evaluation support",
}
"""The packages of zoo/, and which others each may import; docs/design.md is made from it.

``support`` includes zoo/base.py, errors.py and progress.py; ``runner`` is zoo/runner.py.
"""

ENTRANCES = {
    "evaluate": "evaluation",
    "measures": "evaluation",
    "leaderboard": "tables",
    "export": "trained",
    "index": "search",
    "__main__": "cli support",
    "__init__": "registry support checks evaluate measures leaderboard export index runner trained",
}
"""The other modules at the root of zoo/, which import what they give access to."""

MOST_FILES = 16


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


def unit(module):
    """Return the package that a module of zoo belongs to, as LAYERS and ENTRANCES call it."""
    name = module.split(".")[1] if "." in module else "__init__"
    return "support" if name in ("base", "errors", "progress") else name


def arrows():
    """Return {package: packages that it imports}, imports within functions included."""
    found = {}
    for path in sources("zoo"):
        names = path.relative_to(ROOT).with_suffix("").parts
        own = unit(".".join(names))
        for node in ast.walk(ast.parse(path.read_text())):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module == "zoo":
                modules = [f"zoo.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module]
            ours = {unit(m) for m in modules if m.split(".")[0] == "zoo" and m != "zoo.__version__"}
            found.setdefault(own, set()).update(ours - {own})
    return found


def test_packages_import_what_the_table_says_and_nothing_else():
    table = {one: set(others.split()) for one, others in (LAYERS | ENTRANCES).items()}
    assert arrows() == table


def test_no_package_imports_one_that_imports_it():
    above = set(LAYERS)
    for package, others in LAYERS.items():
        above.discard(package)
        assert not above & set(others.split()), f"{package}: list it after what it imports"


def test_folders_are_short_and_files_do_not_repeat_their_names():
    for folder in {path.parent for path in sources("zoo")}:
        files = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
        assert len(files) <= MOST_FILES, f"{folder}: {len(files)} files"
        assert not [name for name in files if name.startswith((folder.name, "_"))], folder


def test_a_public_class_has_a_name_of_its_own():
    places = {}
    for path in sources("zoo"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_the_docstring_of_a_package_names_its_files():
    for init in sorted((ROOT / "zoo").rglob("__init__.py")):
        files = {path.stem for path in init.parent.glob("*.py")} - {"__init__"}
        said = set(re.findall(r"``(\w+)``", ast.get_docstring(ast.parse(init.read_text())) or ""))
        assert init.parent.name == "zoo" or files <= said, f"{init}: {sorted(files - said)}"


def test_tests_have_the_folders_of_what_they_test():
    tested = {path.name for path in (ROOT / "tests").iterdir() if any(path.glob("test_*.py"))}
    assert tested == set(LAYERS) - {"runner"} | set(COMPONENTS) | {"docs", "gpu"}


def test_the_picture_is_up_to_date():
    command = [sys.executable, ROOT / "tools" / "make_layout.py", "--check"]
    assert subprocess.run(command, check=False).returncode == 0
    page = (ROOT / "docs" / "design.md").read_text("utf-8")
    assert max(map(len, re.findall("^[┌├│└].*$", page, re.M))) <= 78


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


def test_the_lazy_modules_are_offered_for_completion():
    assert set(zoo.__all__) <= set(dir(zoo))
    assert "__version__" in dir(zoo)
