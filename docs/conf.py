"""The site: `make docs` builds it into docs/_build, where it opens from disk and searches offline."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

from fedsim.version import __version__  # noqa: E402

project = "fedsim"
copyright = "the authors of fedsim, Apache-2.0"
release = version = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton", "fedsim_pages"]
exclude_patterns = ["_build", "_ext"]

html_theme = "furo"
html_title = f"fedsim {__version__}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False

myst_enable_extensions = ["deflist", "dollarmath", "colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks carry their outputs; `make tutorial` makes them anew
nb_merge_streams = True
copybutton_prompt_text = r">>> |\$ "

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
