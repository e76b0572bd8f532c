"""`python -m maxrl.grid`: a product of options, see maxrl/run/grid.py."""

import sys

from maxrl.run.grid import script

if __name__ == "__main__":
    script(sys.argv[1:])
