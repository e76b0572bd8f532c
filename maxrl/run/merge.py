"""A LoRA adapter added to the weights of its base: a plain model for other programs.

    python -m maxrl merge RUN OUT

RUN is a checkpoint or a run directory, whose newest checkpoint is taken. OUT gets its recipe, too,
so that eval.py and sample.py ask and judge as in training.
"""

import sys
from dataclasses import replace
from pathlib import Path

from maxrl.learning.config import Config
from maxrl.models import checkpoint, lora
from maxrl.run import cli
from maxrl.system.arguments import Parser
from maxrl.system.errors import UsageError, refusing
from maxrl.system.files import read_json

LORA = ("lora_rank", "lora_alpha", "lora_projections")


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
        record = checkpoint.find(args.run) / "recipe.json"
        recipe = read_json(record) if record.exists() else {}
        if "config" in recipe:
            recipe["config"] |= {name: getattr(Config, name) for name in LORA}
            recipe |= {"base": "", "reference": ""}
        checkpoint.save(args.out, replace(adapted, needs={}), recipe=recipe or None)
    print(f"wrote {args.out}")


if __name__ == "__main__":
    with cli.script("maxrl merge"):
        main(sys.argv[1:])
