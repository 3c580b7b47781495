"""The papers' tables and figures by name, one TOML file each, and what all tables of a paper share in papers/.

Nothing here runs anything: a table expands into cells, and a cell says which experiment it is and what the paper
prints for it.
"""

from fedsim.presets.tables import Cell, Printed, Table, load, names, select

__all__ = ["Cell", "Printed", "Table", "load", "names", "select"]
