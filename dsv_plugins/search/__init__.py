"""Ways to spend the updates of a study on its candidates."""

from dsv_plugins.search.grid import grid_search
from dsv_plugins.search.halving import Rungs, halving

__all__ = ["Rungs", "grid_search", "halving"]
