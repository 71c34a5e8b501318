"""`python -m skewflow` is the command `skewflow`."""

from skewflow_lab.cli import main

if __name__ == "__main__":
    main()
