"""Where a run comes from: the commit of the code, and the processor."""

import contextlib
import platform
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def commit() -> str:
    """The commit of this checkout, with a + if files differ from it; "" if it is none."""
    # An installed package may lie within a checkout of something else.
    git = ["git", "--no-optional-locks", f"--git-dir={ROOT}/.git", f"--work-tree={ROOT}"]
    describe = [*git, "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(describe, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def processor() -> str:
    """The name of the CPU."""
    about = ""
    with contextlib.suppress(OSError):
        about = Path("/proc/cpuinfo").read_text()
    found = re.search(r"model name\s*: (.*)", about)
    return found[1] if found else platform.machine()
