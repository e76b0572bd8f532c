"""The command `maxrl` of an installed package: `maxrl train` is `python train.py`.

maxrl train | eval | sample              the scripts of these names
maxrl plots | report | toy               figures, an HTML page, the simulation (maxrl/analysis)
maxrl grid                               a run for every combination of options (maxrl/run)
maxrl merge                              an adapter added to its model (maxrl/run)
maxrl --version
"""

import os
import sys
from pathlib import Path

from maxrl import __version__
from maxrl.system.arguments import near

HERE = Path(__file__).resolve().parent
SCRIPTS = ("train", "eval", "sample")
MODULES = {name: f"maxrl.analysis.{name}" for name in ("plots", "report", "toy")}
MODULES |= {name: f"maxrl.run.{name}" for name in ("grid", "merge")}


def script(name: str) -> Path:
    """The script of this name: within the package where that is installed, else beside it."""
    installed = HERE / "scripts" / f"{name}.py"
    return installed if installed.exists() else HERE.parent / f"{name}.py"


def main():
    """Replace this process by the program, whose signals and exit code are then its own."""
    name, *words = sys.argv[1:] or ["--help"]
    if name in SCRIPTS:
        program = [str(script(name))]
    elif name in MODULES:
        # -P leaves the current directory out of the module path: code that lies there, as in a run
        # of somebody else's, is not imported. In a clone, that is where the package is.
        safely = [] if Path.cwd() == HERE.parent else ["-P"]
        program = [*safely, "-m", MODULES[name]]
    elif name == "--version":
        print(f"maxrl {__version__}")
        sys.exit()
    else:
        print(__doc__)
        if name in ("-h", "--help"):
            sys.exit(0)
        print(f"maxrl {name} is no program; {near(name, [*SCRIPTS, *MODULES])}", file=sys.stderr)
        sys.exit(2)
    os.execv(sys.executable, [sys.executable, *program, *words])


if __name__ == "__main__":
    main()
