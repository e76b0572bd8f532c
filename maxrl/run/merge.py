"""A LoRA adapter added to the weights of its base: a plain model for other programs.

    python -m maxrl merge RUN OUT

RUN is a checkpoint or a run directory, whose newest checkpoint is taken.
"""

import sys
from pathlib import Path

from maxrl.models import checkpoint, lora
from maxrl.run import cli
from maxrl.system.arguments import Parser
from maxrl.system.errors import UsageError, refusing


def main(arguments: list[str]):
    """Write the merged model that a command line names."""
    parser = Parser("python -m maxrl merge", description=__doc__)
    parser.add_argument("run", help="checkpoint or run directory with an adapter")
    parser.add_argument("out", type=Path, help="directory to write")
    args = parser.parse_options(arguments)
    with refusing("", ValueError, OSError):
        adapted = checkpoint.load(args.run)
        if not lora.has_lora(adapted.model):
            raise UsageError(f"{args.run} has no adapter: it is a plain model already")
        lora.merge(adapted.model)
        checkpoint.save(args.out, adapted)
    print(f"wrote {args.out}")


if __name__ == "__main__":
    with cli.script("maxrl merge"):
        main(sys.argv[1:])
