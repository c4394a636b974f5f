"""The tests of the package docs/examples/dsv-mlflow, run on its source."""

import importlib.util
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "docs/examples/dsv-mlflow"


def _loaded(name: str, file: Path):
    spec = importlib.util.spec_from_file_location(name, file)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_loaded("dsv_mlflow", PACKAGE / "src/dsv_mlflow/__init__.py")
_tests = _loaded("dsv_mlflow_tests", PACKAGE / "tests/test_plugin.py")
globals().update({name: value for name, value in vars(_tests).items() if name.startswith("test_")})
