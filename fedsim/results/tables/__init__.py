"""Tables for papers: one description, and the same table on the terminal, as CSV, Markdown and LaTeX."""
