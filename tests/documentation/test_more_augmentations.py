"""The tests of the package docs/examples/dsv-more-augmentations, run on its source."""

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "docs/examples/dsv-more-augmentations"

sys.path.insert(0, str(PACKAGE / "src"))
_spec = spec_from_file_location("dsv_more_augmentations_tests", PACKAGE / "tests/test_plugin.py")
_tests = module_from_spec(_spec)
_spec.loader.exec_module(_tests)
globals().update({name: value for name, value in vars(_tests).items() if name.startswith("test_")})


def test_listing_the_package_imports_nothing_heavy():
    code = "import sys, dsv_more_augmentations as m; m.augmentation(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PACKAGE / "src").returncode == 0
