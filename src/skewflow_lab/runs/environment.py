"""The environment of a run: machine, versions, commit."""

import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import torch

from . import code
from .files import RunError

PACKAGES = ("numpy", "triton", "geoopt", "geotorch", "pogo-torch")
_CODE = (":(top)", ":(top,exclude)results")


def environment(device: str | torch.device) -> dict[str, str]:
    """The machine, the versions, the commit, the code and the day of a run on `device`."""
    return {
        "device": device_name(device),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{package: version(package) for package in PACKAGES},
        "commit": commit(),
        "code": code.to_text(code.fingerprints()),
        "date": datetime.now(timezone.utc).date().isoformat(),
    }


def check_device(device: str) -> None:
    """Refuse a GPU that does not exist.

    Raises:
        RunError: If `device` is "cuda" and torch sees none.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise RunError("--device must exist: got cuda, and torch sees no GPU. Use --device cpu.")


def device_name(device: str | torch.device) -> str:
    """The name of the GPU or of the processor."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def commit() -> str:
    """The short commit of this source tree, with a + if more than its results has changed.

    Changed results do not count, because a run that saves its results does not change the code. A
    copy of the tree without git names its commit in the variable SKEWFLOW_COMMIT.
    """
    if named := os.environ.get("SKEWFLOW_COMMIT"):
        return named
    here = Path(__file__).parent

    def git(*words: str) -> str:
        try:
            done = subprocess.run(
                ["git", *words], cwd=here, capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            return ""
        return done.stdout.strip()

    head = git("rev-parse", "--short", "HEAD")
    if not head:
        return ""
    return head + ("+" if git("status", "--porcelain", "--", *_CODE) else "")


def version(package: str) -> str:
    """The installed version, or "" when there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
