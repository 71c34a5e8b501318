"""Whether the extra `problems` is installed; imported before what needs it."""

from importlib.util import find_spec


def require(package: str) -> None:
    """Raise where a package of the extra is missing."""
    if find_spec(package) is None:
        raise ModuleNotFoundError(
            f"skewflow.problems needs {package}: pip install 'skewflow[problems]'", name=package
        )


require("scipy")
