"""What `import keras_tricks` brings along, and how the modules lean on each other."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import keras_tricks

PACKAGE = Path(keras_tricks.__file__).parent

IMPORTS = """
import json, sys
import keras
before = set(sys.modules)
import keras_tricks
print(json.dumps(sorted(set(sys.modules) - before)))
"""

USES = """
import sys
import keras_tricks
from keras_tricks._events import Events
from keras_tricks._table import table
events = Events(sys.argv[1])
events.scalar("loss", 0.5, 1)
events.text("report", "fact", 1)
events.histogram("weights", [1.0, 2.0], 1)
events.close()
table([[1]], ["x"])
print("tensorflow" in sys.modules)
"""


def python(code, *arguments):
    """What a fresh interpreter prints last."""
    command = [sys.executable, "-c", code, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return result.stdout.splitlines()[-1]


def test_the_import_adds_no_package_to_what_keras_loads():
    roots = {name.partition(".")[0] for name in json.loads(python(IMPORTS))}
    assert roots - set(sys.stdlib_module_names) <= {"keras_tricks", "keras", "psutil"}


@pytest.mark.backend("jax", "torch")
def test_event_files_do_not_load_tensorflow(tmp_path):
    assert python(USES, str(tmp_path)) == "False"


def test_every_public_name_exists_once():
    assert len(set(keras_tricks.__all__)) == len(keras_tricks.__all__)
    assert [name for name in keras_tricks.__all__ if not hasattr(keras_tricks, name)] == []


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").exists()


def own_imports(path):
    """The modules of the package, without its name, that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "keras_tricks":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("keras_tricks."):
            found.add(node.module.split(".")[1])
    return found


def tricks():
    """The modules that define a trick."""
    return {
        path.stem
        for path in PACKAGE.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id == "Trick" for base in node.bases)
    }


def helpers():
    """The modules that stand left of a fit: pure, or thin."""
    private = {path.stem for path in PACKAGE.glob("_*.py")}
    return private - {"__init__", "__main__", "_run", "_trick"}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_imports_point_one_way(path):
    imports = own_imports(path) - {path.stem}
    if path.parent.name == "_backend" or path.stem == "host":
        assert imports <= {"_backend", "host"}
    elif path.stem in helpers():
        assert imports <= {"_backend", "host", *helpers()}
    elif path.stem in tricks():
        assert not imports & tricks()
