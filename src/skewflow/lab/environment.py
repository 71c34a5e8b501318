"""What a number depends on besides the code: machine, versions, commit."""

import os
import platform
import subprocess
from pathlib import Path

import torch


def environment() -> dict[str, str]:
    """The device, the versions and the commit of this run."""
    return {
        "device": device_name(),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "commit": commit(),
    }


def device_name() -> str:
    """The GPU's name, or the processor's."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def commit() -> str:
    """The short commit of this source tree, with a + when it has changes.

    Outside of a git checkout, the variable SKEWFLOW_COMMIT, or "".
    """
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
        return os.environ.get("SKEWFLOW_COMMIT", "")
    return head + ("+" if git("status", "--porcelain") else "")


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""
