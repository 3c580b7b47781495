"""The experiment config: typed sections, checked values, layers.

Layers, later ones win: defaults < defaults that the method states < preset < file < command line. `Experiment`
is complete and is what goes into `config.toml` and to every client; loading that file again gives the same
experiment.
"""

from fedsim.config.experiment import (
    Experiment,
    build,
    from_json,
    merged,
    parse_setting,
    read_toml,
    to_json,
    to_layer,
    to_toml,
    wire_of,
)
from fedsim.config.sections import (
    MAX_HEARTBEAT_SECONDS,
    AboveZero,
    Cluster,
    Count,
    Data,
    Fraction,
    Model,
    NonNegative,
    Positive,
    Run,
    Section,
    Train,
    Wire,
    World,
)

__all__ = [
    "MAX_HEARTBEAT_SECONDS",
    "AboveZero",
    "Cluster",
    "Count",
    "Data",
    "Experiment",
    "Fraction",
    "Model",
    "NonNegative",
    "Positive",
    "Run",
    "Section",
    "Train",
    "Wire",
    "World",
    "build",
    "from_json",
    "merged",
    "parse_setting",
    "read_toml",
    "to_json",
    "to_layer",
    "to_toml",
    "wire_of",
]
