"""The command `maxrl`: `maxrl train subset_sum` is `python train.py subset_sum`.

maxrl train | eval | sample              the scripts of these names
maxrl grid | plots | report | toy        python -m maxrl.NAME
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = ("train", "eval", "sample")
MODULES = ("grid", "plots", "report", "toy")


def script(name: str) -> Path:
    """The path of a script: inside an installed package, or next to it in a clone."""
    installed = HERE / "scripts" / f"{name}.py"
    return installed if installed.exists() else HERE.parent / f"{name}.py"


def main():
    """Replace this process by the program, so that signals and exit codes are the program's."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in SCRIPTS:
        program = [str(script(name))]
    elif name in MODULES:
        program = ["-m", f"maxrl.{name}"]
    else:
        print(__doc__)
        if name in ("-h", "--help"):
            sys.exit()
        print(f"maxrl: there is no command {name}", file=sys.stderr)
        sys.exit(2)
    os.execv(sys.executable, [sys.executable, *program, *sys.argv[2:]])


if __name__ == "__main__":
    main()
