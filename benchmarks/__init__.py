"""Timings and comparisons, and what made and checks generators: `python -m benchmarks.NAME`.

Run under the settings that nodes have.
"""

import nodes  # noqa: F401 - before anything that loads torch
