"""Make, test, keep and show a study: `python -m results.lab STUDY WHAT`.

    runs      make its runs in runs/STUDY, or resume them: of a --stage, of names with --only TEXT,
              and what these start from; --jobs N at a time, each on one core, with what it prints
              in RUN.log
    test      evaluate their last checkpoints, each file once, into runs/STUDY
    keep      put what stays of them into results/STUDY: runs.json and tests.json
    tables    print the tables, and write results/STUDY/tables.md
    figures   draw its figures again, into results/STUDY/figures and figures.json

STUDY is a folder of results/ with a study.py, of which `comparison` has MaxRL minus GRPO in all of
them, or `all`. With --dry-run runs and test print their commands.
"""

import argparse
import contextlib
import importlib
import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

from maxrl.analysis import plots
from maxrl.run import grid
from maxrl.system.errors import UsageError, escape_output
from maxrl.system.files import write_text
from results.lab.data import RESULTS, kept
from results.lab.figures import draw_all
from results.lab.keep import STEPS, keep
from results.lab.runs import in_order, recorded, with_bases

ONE_CORE = {"OMP_NUM_THREADS": "1", "PYTHONPATH": "."}
STUDIES = [file.parent.name for file in sorted(RESULTS.glob("*/study.py"))]


def load(study: str):
    """The module of a study."""
    return importlib.import_module(f"results.{study}.study")


def runs_of(study: str) -> dict[str, dict[str, list[str]]]:
    """{stage: {run: its words}}; of a study that names none, as it has ended, those kept."""
    return getattr(load(study), "RUNS", None) or {"all": recorded(study)}


def tests_of(study: str) -> dict[str, list[str]]:
    """{test: its words}, which are the kept ones in the same way."""
    return getattr(load(study), "TESTS", None) or recorded(study, "tests")


def page(study: str) -> Path:
    """Where the tables of a study are written."""
    return RESULTS / study / "tables.md"


def tables_of(study: str) -> str:
    """What the files of a study say, as Markdown."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        load(study).tables()
    return (
        f"# Tables: {study}\n\n`python -m results.lab {study} tables` writes this page. Where a "
        "row is over seeds, ± is half\nof the 95 % t interval; elsewhere its table says what it "
        f"is.\n\n{printed.getvalue().strip()}\n"
    )


def with_text(names, args) -> list[str]:
    """Those with the text of --only; UsageError if a study has none."""
    found = [name for name in names if args.only in name]
    if not found and args.study != "all":
        there = ", ".join(names) or "none"
        raise UsageError(f"{args.study} has no {args.what} with {args.only!r}: there are {there}")
    return found


def chosen(study: str, args) -> dict[str, list[str]]:
    """The runs that a command asks for, of a stage or of all, and those that they start from."""
    runs = runs_of(study)
    if args.stage and args.stage not in runs:
        raise UsageError(f"no stage {args.stage}: --stage is one of {', '.join(runs)}")
    every = {name: words for some in runs.values() for name, words in some.items()}
    found = runs[args.stage] if args.stage else every
    found = {name: found[name] for name in with_text(found, args)}
    return with_bases(found, every, f"runs/{study}")


def make(study: str, args) -> int:
    """Make the runs, those first that others start from; the exit code of the grid."""
    made = chosen(study, args)
    folder = Path("runs", study)
    if args.dry_run:
        for name, words in made.items():
            print(shlex.join(["python", *words, "--out", str(folder / name)]))
        return 0
    slots = [slot | ONE_CORE for slot in grid.slots_of(args.jobs)]
    for some in in_order(made, str(folder)):
        if some and (code := grid.run_all([sys.executable], some, folder, slots)):
            return code
    return 0


def test(study: str, args) -> int:
    """Write the tests that are not there yet; the exit code of the first that fails."""
    tests = tests_of(study)
    for name in with_text(tests, args):
        file = Path("runs", study, name)
        command = [*tests[name], "--json", str(file)]
        if args.dry_run:
            print(shlex.join(["python", *command]))
        elif not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            done = subprocess.run([sys.executable, *command], env=os.environ | ONE_CORE)
            if done.returncode:
                return done.returncode
    return 0


def show(study: str, args):
    """Write the tables or draw the figures of a study, where it has any."""
    module = load(study)
    if args.what == "tables" and hasattr(module, "tables"):
        text = tables_of(study)
        write_text(page(study), text)
        print(text)
    figures = getattr(module, "FIGURES", {})
    if args.what == "figures":
        chosen_ones = {name: figures[name] for name in with_text(figures, args)}
        known = {} if args.out else kept(study, "figures")
        draw_all(chosen_ones, (args.out or RESULTS) / study, known, not args.numbers)


def main(arguments: list[str]) -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("results.lab", description=__doc__, formatter_class=form)
    parser.add_argument("study", choices=[*STUDIES, "all"])
    parser.add_argument("what", choices=["runs", "test", "keep", "tables", "figures"])
    parser.add_argument("--stage", default="", help="of the study's runs")
    parser.add_argument("--only", default="", metavar="TEXT", help="names with this text")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    parser.add_argument("--numbers", action="store_true", help="no pictures of the figures")
    parser.add_argument("--out", type=Path, help="folder of the figures, in place of results/")
    args = parser.parse_args(arguments)
    if args.what == "figures" and not args.numbers:
        plots.require()
    for study in STUDIES if args.study == "all" else [args.study]:
        if args.what in ("tables", "figures"):
            show(study, args)
        elif args.what == "keep":
            size = getattr(load(study), "KEPT_STEPS", STEPS)
            keep(study, runs_of(study), tests_of(study), size)
        elif code := {"runs": make, "test": test}[args.what](study, args):
            return code
    return 0


if __name__ == "__main__":
    escape_output()
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        sys.exit(f"results.lab: {error}")
