"""fedsim: the learning side of the simulator. It knows methods, models and data, and nothing of sockets."""

from fedsim.version import __version__

__all__ = ["__version__"]
