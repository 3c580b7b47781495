"""Timings and comparisons, and what made the file of the embedded generator: `python -m benchmarks.NAME`.

Run under the settings that nodes have.
"""

import nodes  # noqa: F401 - before anything that loads torch
