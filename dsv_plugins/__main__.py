"""`python -m dsv_plugins` is `dsv`."""

import sys

from dsv_plugins.cli import main

sys.exit(main())
