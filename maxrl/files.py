"""JSON that may come from anywhere: the files of a checkpoint, the lines of a data set."""

import json
from pathlib import Path

LARGEST = 1 << 28  # bytes of a JSON file; a tokenizer.json of a quarter of a million words has a tenth of it
DEEPEST = 100  # objects within objects; Python's own limit depends on who calls


def read_file(path) -> bytes:
    """The bytes of a small file; FileNotFoundError where there is none, ValueError for a larger one."""
    path = Path(path)
    if not path.is_file():  # a device would never end
        raise FileNotFoundError(f"there is no file {path}")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path} is larger than {LARGEST} bytes, which is too much for such a file")
    return path.read_bytes()


def read_json(path) -> dict:
    """The object in a JSON file; FileNotFoundError where there is none, ValueError, with the file, for anything else in it."""
    value = parse(read_file(path), str(path))
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no object but {repr(value)[:40]}")
    return value


def parse(text: bytes, where: str):
    """A JSON value. ValueError, which says where, for what is no JSON in UTF-8 and for more than DEEPEST levels.

    NaN and Infinity are read, as Python's json writes them; a key that an object has twice counts with its last value.
    """
    try:
        value = json.loads(text.decode())
    except UnicodeDecodeError:
        raise ValueError(f"{where} is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON: {str(error)[:100]}") from None
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for outer in level if isinstance(outer, (dict, list))
                 for inner in (outer.values() if isinstance(outer, dict) else outer)]
    if level:
        raise ValueError(f"{where} is not JSON for us: it is nested more than {DEEPEST} levels deep")
    return value
