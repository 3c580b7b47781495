"""Files to start from: what `fedsim new` writes. Each works as it is."""
