"""`python -m nodes` is the command `fedsim` where the package is not installed."""

from nodes.cli import main

if __name__ == "__main__":
    main()
