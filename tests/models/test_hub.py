"""Models of the hub: fetched once, read again offline."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from maxrl.learning.config import Config
from maxrl.models import checkpoint, hub_files
from maxrl.models.checkpoint import Checkpoint
from maxrl.run.build import language_model
from maxrl.tasks.maze import ID, Maze, generate, to_prompt, unpack
from tests.helpers import tiny
from tests.helpers.logits import close, logits
from tests.helpers.trained import TOKENIZER


def test_a_hub_id(tmp_path, monkeypatch):
    """ORG/NAME that is no directory here comes from the hub: all that is needed, no pickles."""
    from huggingface_hub.utils import filter_repo_objects

    checkpoint.save(
        tmp_path / "a",
        Checkpoint(tiny.model(torch.float32), TOKENIZER, [7, 2]),
        recipe={},
    )
    shutil.copytree(tmp_path / "a", tmp_path / "a/b")
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
    assert hub_files.base_name("Org-1/some.model_2/b") == str(tmp_path / "a/b")
    asked.pop()
    for local in ("a/c", "runs/maze17_sft", "./x/y", "../x", "x", "w/x/y/z", str(tmp_path / "x")):
        with pytest.raises(FileNotFoundError, match="neither a checkpoint"):
            checkpoint.find(local)
    with pytest.raises(FileNotFoundError, match="as a is here, it was not looked for on the hub"):
        checkpoint.find("a/c")
    assert len(asked) == 1


# A checkpoint as MaxRL's and TailRL's authors publish their 17x17 mazes' models, written by
# transformers 5.7 (repository max-rl/maze_v2_sft_ckpts_guanning; Zanette-Labs/TailRL at bd2e73a,
# experiments/text_maze/scripts/sft_pretrain.py): a folder for each, words as tokens, one end token.
WORDS = (
    "<pad> <bos> <eos> <unk> GRID_START GRID_END PATH_START DONE PATH WALL GOAL START NEWLINE UP "
    "DOWN LEFT RIGHT"
)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The repository's folder, with random weights, and transformers' model of it."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    root = tmp_path_factory.mktemp("hub")
    folder = root / "ckpt-3550"
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=32,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=512,
        max_position_embeddings=512,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    words = {word: i for i, word in enumerate([*WORDS.split(), "\n"])}
    words |= {f"RESERVED_{i}": 18 + i for i in range(14)}
    backend = Tokenizer(models.WordLevel(vocab=words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens([AddedToken(word, special=True) for word in WORDS.split()[:4]])
    backend.save(str(folder / "tokenizer.json"))
    names = {f"{name}_token": f"<{name}>" for name in ("bos", "eos", "unk", "pad")}
    names["tokenizer_class"] = "TokenizersBackend"
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    return root, model.float()


def test_the_authors_mazes_models(published, monkeypatch, tmp_path):
    """A folder of a repository: their logits and token ids, and DONE ends a response as well."""
    root, theirs = published
    asked = {}

    def snapshot_download(name, **options):
        asked[name] = options["allow_patterns"]
        return str(root)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    found = checkpoint.load("max-rl/maze_v2_sft_ckpts_guanning/ckpt-3550")
    assert "ckpt-3550/*.json" in asked["max-rl/maze_v2_sft_ckpts_guanning"]
    mazes = unpack(generate(17, 3, np.random.default_rng(0)), 17)
    prompts = [to_prompt(walls) for walls in mazes]
    ids = [found.tokenizer.encode(prompt) for prompt in prompts]
    assert ids == [[ID[word] for word in prompt.split()] for prompt in prompts]
    tokens = torch.tensor(ids)
    with torch.no_grad():
        close(logits(found.model.float(), tokens), theirs(tokens).logits)
    cfg = Config(task="maze", precision="float32")
    task = SimpleNamespace(stop_tokens=Maze.stop_tokens)
    assert found.stop_tokens == [2]
    policy = language_model(cfg, found, task, None, torch.device("cpu"))
    assert policy.stop_tokens == [7, 2]
