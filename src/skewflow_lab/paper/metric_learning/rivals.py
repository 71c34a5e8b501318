"""scikit-learn's models, and metric-learn's LMNN in a process with a limit of processor time."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def has_lmnn() -> bool:
    """Whether metric-learn is installed."""
    return find_spec("metric_learn") is not None


class UnfinishedError(Exception):
    """LMNN has not finished within its limit."""


class LMNN:
    """Large margin nearest neighbours of metric-learn."""

    def __init__(self, components: int, seed: int, limit: int) -> None:
        self.components, self.seed, self.limit = components, seed, limit
        self.seconds = 0.0
        """Processor time of the fit."""

    def fit(self, X: Array, y: Array) -> LMNN:
        """Fit in another process.

        Raises:
            UnfinishedError: If it fails, or takes more than the limit.
        """
        with tempfile.TemporaryDirectory() as folder:
            asked, found = Path(folder) / "asked.npz", Path(folder) / "found.npy"
            np.savez(asked, X=X, y=y, options=[self.components, self.seed, self.limit])
            command = [sys.executable, __file__, str(asked), str(found)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode or not found.exists():
                raise UnfinishedError
            self.components_ = np.load(found)
            self.seconds = json.loads(done.stdout.splitlines()[-1])
        return self

    def transform(self, X: Array) -> Array:
        """The coordinates in which its metric is Euclidean."""
        return X @ self.components_.T


def main() -> None:
    """Fit in this process."""
    import resource

    import threadpoolctl  # type: ignore[import-untyped]

    asked, found = sys.argv[1:]
    with np.load(asked) as file:
        X, y, (components, seed, limit) = file["X"], file["y"], file["options"].tolist()
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    kind = _lmnn()
    with threadpoolctl.threadpool_limits(1):
        began = time.process_time()
        model = kind(n_components=components, random_state=seed).fit(X, y)
        seconds = time.process_time() - began
    np.save(found, model.components_)
    print(json.dumps(seconds))


def _lmnn() -> Any:
    """The class, with a keyword that scikit-learn 1.8 has renamed since metric-learn 0.7."""
    import metric_learn  # type: ignore[import-not-found, unused-ignore]
    from metric_learn import _util

    for name in ("check_array", "check_X_y"):
        setattr(_util, name, _renamed(getattr(_util, name)))
    return metric_learn.LMNN


def _renamed(check: Any) -> Any:
    def call(*args: Any, force_all_finite: Any = True, **options: Any) -> Any:
        return check(*args, ensure_all_finite=force_all_finite, **options)

    return call


if __name__ == "__main__":
    main()
