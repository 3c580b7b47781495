"""The tensor work of the papers. Pure: no files, no rounds, nothing of ours but each other."""
