"""`python -m skewflow_lab` is the command `skewflow`."""

from .cli import main

if __name__ == "__main__":
    main()
