"""What commands do besides running one experiment."""
