"""Shared by tests."""

import types

from maxrl import config


def started(path, *, main=True, **options):
    """As much of a run as its logger asks for."""
    cfg = config.Config(**options)
    return types.SimpleNamespace(
        cfg=cfg, recipe="", record={}, resumed=None, main=main, start=lambda step: path
    )
