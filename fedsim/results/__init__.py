"""What a run leaves behind: the folder, its tables, its pictures."""
