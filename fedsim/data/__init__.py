"""Samples and who holds them. `Federation(experiment)` is the way in; the rest is what it hands out."""

from fedsim.data.dataset import ClientData, Dataset, Subset
from fedsim.data.federation import Federation

__all__ = ["ClientData", "Dataset", "Federation", "Subset"]
