"""The package's shape: one-way imports, small files and functions, documented names.

Rooms are ordered as in the design: each may import from those before it, and from
its own; among the files of a room there is no cycle.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import jaxrl_par
from jaxrl_par.presets import ALGORITHMS

PACKAGE = Path(jaxrl_par.__file__).parent
# Longest prefix wins. Equal numbers: one room.
ROOMS = {
    "spaces": 0,
    "types": 0,
    "checks": 0,
    "collectives": 1,
    "returns": 1,
    "losses": 1,
    "distributions": 1,
    "normalize": 1,
    "outliers": 1,
    "minibatches": 1,
    "conformance": 1,
    "replay": 1,
    "networks": 2,
    "envs": 2,
    "algorithms": 3,
    "train": 4,
    "search": 5,
    "actors": 5,
    "deploy": 5,
    "presets": 6,
    "__init__": 7,
    "cli": 8,
    "__main__": 8,
}
# Modules that may not know each other though their rooms would let them.
APART = {("networks", "envs"), ("envs", "networks"), ("algorithms", "envs")}
FILES = sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    """For example train.loop; a package is its own name."""
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts)


MODULES = {module_name(path): path for path in FILES}


def imported(path: Path) -> set[str]:
    """Modules of the package that a file imports, lazily or not."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "jaxrl_par":
                found.add(_module_of(name.removeprefix("jaxrl_par").lstrip(".")))
    return found


def _module_of(name: str) -> str:
    """The module that holds a dotted name."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or "__init__"


def room(module: str) -> str:
    return module.split(".")[0]


IMPORTS = {name: imported(path) for name, path in MODULES.items()}


def used(*names: str) -> set[str]:
    """Modules that use one of these names of jax's."""
    return {
        module
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Attribute) and node.attr in names)
        and ast.unparse(node).startswith("jax.")
    }


def test_every_module_is_in_a_room():
    assert {room(module) for module in MODULES} <= set(ROOMS)


def test_imports_run_one_way():
    breaches = [
        f"{module} imports {other}"
        for module, others in IMPORTS.items()
        for other in others
        if ROOMS[room(other)] > ROOMS[room(module)]
        or (room(module), room(other)) in APART
    ]
    assert breaches == []


def test_there_is_no_cycle():
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail, module))
        if module in done:
            return
        for other in IMPORTS[module]:
            visit(other, (*trail, module))
        done.add(module)

    for module in MODULES:
        visit(module, ())


def test_only_plan_and_layout_name_devices():
    """And an axis of the mesh: elsewhere `axes` are arguments."""
    users = used("devices", "local_devices", "NamedSharding", "shard_map", "make_mesh")
    # The command `doctor` lists what there is; `check_algorithm` tries two.
    users = {m for m in users if room(m) not in ("cli", "conformance")}
    assert users == {"train.plan", "train.layout"}


def test_only_collectives_reduce_over_devices():
    words = ("psum", "pmean", "pmax", "pmin", "all_gather", "ppermute", "axis_index")
    assert used(*words) == {"collectives"}


def test_files_and_functions_are_short():
    long = []
    for path in [*FILES, *Path(__file__).parent.glob("*.py")]:
        text = path.read_text()
        if len(text.splitlines()) >= 400:
            long.append(f"{path.name}: {len(text.splitlines())} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                lines = node.end_lineno - node.lineno + 1
                if lines >= 60:
                    long.append(f"{path.name}: {node.name} has {lines} lines")
    assert long == []


def test_public_names_are_few_and_documented():
    names = jaxrl_par.__all__
    assert len(names) == len(set(names)) < 40 + len(ALGORITHMS)
    for name in names:
        value = getattr(jaxrl_par, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            text = value.__doc__ or ""
            # What dataclasses write by themselves says nothing.
            assert text and not text.startswith(f"{name}("), name
            for member, function in (
                vars(value).items() if inspect.isclass(value) else ()
            ):
                if inspect.isfunction(function) and not member.startswith("_"):
                    assert inspect.getdoc(getattr(value, member)), f"{name}.{member}"
    for path in FILES:
        text = path.read_text()
        assert not text or ast.get_docstring(ast.parse(text)), path


def test_importing_computes_nothing_and_loads_no_optional_suite():
    """No device is started, no environment suite, plotting or test tool loaded."""
    code = (
        "import sys, jaxrl_par, jax;"
        "from jax._src import xla_bridge;"
        "print(xla_bridge.backends_are_initialized(),"
        "[m for m in ('gymnax', 'matplotlib', 'brax', 'equinox', 'pytest')"
        " if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False []"
