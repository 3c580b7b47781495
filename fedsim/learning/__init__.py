"""What every half does to a model: train, evaluate, count parameters, measure time."""
