"""Everything that is drawn, a file for each subject."""
