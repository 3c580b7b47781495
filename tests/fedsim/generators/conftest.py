"""Stable Diffusion needs the extra `ktl`; its tests are part of the suite where that is installed."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("diffusers") and find_spec("transformers") else ["test_stable_diffusion.py"]
