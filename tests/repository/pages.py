"""What the project's pages and Makefile say: code, commands, targets and links."""

import re
import shlex

from tests import ROOT

FOLDERS = ("maxrl", "data", "results", "tests")
FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
FILES += [page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md"))]
PAGES = {page.relative_to(ROOT).as_posix(): page.read_text() for page in FILES}
ALL = "\n".join(PAGES.values())
TARGETS = re.findall(r"(?m)^([a-z0-9-]+):.*##", (ROOT / "Makefile").read_text())


def section(title: str) -> str:
    """The text of the first section of this name."""
    return ALL.split(f"\n## {title}\n")[1].split("\n## ")[0]


BLOCK = re.compile(r"(?ms)^```\w+\n(.*?)^```$")


def blocks(page: str) -> list[str]:
    """The code blocks of a page or of a part of it."""
    return BLOCK.findall(page)


def block(first: str, last: str) -> str:
    """The lines of code from the one that begins with `first` to the one that begins with
    `last`."""
    found = re.search(rf"(?ms)^{re.escape(first)}.*?^{re.escape(last)}.*?$", ALL)
    return found[0]


def prose(page: str) -> str:
    """A page without its code blocks, as one line."""
    return BLOCK.sub("", page).replace("\n", " ")


def commands(page: str) -> list[str]:
    """What stands in code blocks (without comments) and between backticks, command by command."""
    text = re.sub(r"\\\n\s+", "", page)
    lines = "".join(blocks(text)).splitlines() + re.findall(r"`([^`]+)`", prose(text))
    return [part.strip() for line in lines for part in re.split(r"&&|;| # |  #|\|", line)]


def words(start: str) -> list[list[str]]:
    """The words of the commands that begin so."""
    return [shlex.split(command) for command in commands(ALL) if command.startswith(start)]


# The rooms of maxrl/, from the one that imports no other upwards.
ORDER = re.findall(r"(?m)^(\w+)/ ", section("The map"))
