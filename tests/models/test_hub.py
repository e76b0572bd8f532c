"""Models of the hub: fetched once, read again offline."""

import pytest
import torch

from maxrl.models import checkpoint, hub_files
from maxrl.models.checkpoint import Checkpoint
from tests.helpers import tiny
from tests.helpers.trained import TOKENIZER


def test_a_hub_id(tmp_path, monkeypatch):
    """ORG/NAME that is no directory here comes from the hub: all that is needed, no pickles."""
    from huggingface_hub.utils import filter_repo_objects

    checkpoint.save(
        tmp_path / "a",
        Checkpoint(tiny.model(torch.float32), TOKENIZER, [7, 2]),
        recipe={},
    )
    asked = []

    def snapshot_download(name, **options):
        asked.append((name, options))
        return str(tmp_path / "a")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    assert checkpoint.load("Org-1/some.model_2").stop_tokens == [2, 7]
    assert hub_files.base_name("Org-1/some.model_2") == "Org-1/some.model_2"
    ((name, options),) = asked
    assert name == "Org-1/some.model_2"
    wanted = ["config.json", "model-00001-of-2.safetensors", "chat_template.jinja", "merges.txt"]
    unwanted = ["pytorch_model.bin", "original/x.safetensors", "README.md", "code.py"]
    unwanted.append("consolidated.safetensors")
    assert list(filter_repo_objects(wanted + unwanted, **options)) == wanted
    for local in ("a/b", "runs/maze17_sft", "./x/y", "../x", "x", "x/y/z", str(tmp_path / "x")):
        with pytest.raises(FileNotFoundError, match="neither a checkpoint"):
            checkpoint.find(local)
    assert len(asked) == 1
