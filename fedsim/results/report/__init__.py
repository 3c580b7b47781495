"""The pages drawn from run folders."""
