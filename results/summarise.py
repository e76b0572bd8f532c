"""The tables of a study, from the files in its folder.

    python results/summarise.py STUDY...    prints them, and writes results/STUDY/tables.md
    python results/summarise.py             all studies

`comparison` is MaxRL minus GRPO in all of them: results/tables.md.
"""

import contextlib
import io
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for `python results/summarise.py`

from maxrl.io.files import write_text
from results.minimal import summarise as minimal
from results.reading import RESULTS
from results.tables import (
    comparison,
    fixed_set,
    fresh,
    headline,
    images_1000,
    images_laptop,
    maze17,
    mazes,
    norms,
    oracle,
    order,
    price,
    small_tasks,
    smollm2,
    word_problems,
)


def oracle_and_norms(study: Path):
    oracle.main(study)
    norms.main(study.parent / "gradient_norms")


STUDIES = {
    "comparison": lambda study: comparison.main(study.parent),
    "demo": mazes.main,
    "fixed_set": fixed_set.main,
    "fresh": fresh.main,
    "headline": headline.main,
    "images_1000": images_1000.main,
    "images_laptop": images_laptop.main,
    "maze17": maze17.main,
    "maze9_laptop": mazes.main,
    "minimal": minimal.main,
    "oracle": oracle_and_norms,
    "order": order.main,
    "price": price.main,
    "small_tasks": small_tasks.main,
    "smollm2": smollm2.main,
    "word_problems": word_problems.main,
}


def page(study: str) -> Path:
    """Where the tables of a study are written."""
    return (RESULTS if study == "comparison" else RESULTS / study) / "tables.md"


def tables(study: str) -> str:
    """What the files of a study say, as Markdown."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        STUDIES[study](RESULTS / study)
    return (
        f"# Tables: {study}\n\n`python results/summarise.py {study}` writes this page. Where a "
        "row is over seeds, ± is half\nof the 95 % t interval; elsewhere its table says what it "
        f"is.\n\n{printed.getvalue().strip()}\n"
    )


def main(studies: list[str]):
    unknown = set(studies) - set(STUDIES)
    if unknown:
        sys.exit(f"no study {min(unknown)}: name some of {', '.join(STUDIES)}")
    for study in studies or STUDIES:
        text = tables(study)
        write_text(page(study), text)
        print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
