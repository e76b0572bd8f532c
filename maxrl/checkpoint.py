"""Checkpoints: Hugging Face directories in and out, the training state beside them, and where a run keeps them.

    RUN/recipe.json      the resolved recipe and the command        RUN/metrics.jsonl   one object per step
    RUN/latest           the name of the newest checkpoint          RUN/step-000160/    a checkpoint:
        config.json, generation_config.json, model.safetensors, tokenizer.json, tokenizer_config.json  (for transformers;
        a classifier has config.json and model.safetensors, with torchvision's names)
        recipe.json, optimizer.safetensors, state.json                                                 (for --resume)
"""

import json
import os
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from maxrl.models import from_config
from maxrl.models.transformer import Transformer
from maxrl.tokenizer import Tokenizer


def find(path) -> Path:
    """The checkpoint directory that `path` means: itself, or the newest one of a run directory."""
    path = Path(path)
    if (path / "latest").exists():
        path = path / (path / "latest").read_text().strip()
    if not (path / "config.json").exists():
        raise FileNotFoundError(f"{path} is neither a checkpoint (no config.json) nor a run directory with one")
    return path


def load_model(path) -> tuple[torch.nn.Module, Tokenizer | None, list[int]]:
    """Model (float32), tokenizer and stop tokens (all of generation_config's eos_token_id) of a checkpoint directory.

    A classifier has neither tokenizer (None) nor stop tokens.
    """
    path = find(path)
    config = json.loads((path / "config.json").read_text())
    model = from_config(config)
    load_weights(path, model)
    if not isinstance(model, Transformer):
        return model, None, []
    stop = {}
    if (path / "generation_config.json").exists():
        stop = json.loads((path / "generation_config.json").read_text())
    stop = stop.get("eos_token_id", config.get("eos_token_id"))
    stop = [] if stop is None else [stop] if isinstance(stop, int) else list(stop)
    return model, Tokenizer.load(path), stop


def load_weights(path: Path, model: torch.nn.Module):
    """Every tensor of the model from the directory's *.safetensors, none too many; ValueError where they do not fit."""
    files = sorted(path.glob("*.safetensors"))
    files = [f for f in files if f.name != "optimizer.safetensors"]
    if not files:
        raise FileNotFoundError(f"{path} holds no *.safetensors; weights in other formats are not read")
    try:
        weights = {name: tensor.float() for f in files for name, tensor in load_file(f).items()}
    except SafetensorError as error:
        raise ValueError(f"the weights in {path} cannot be read ({error}): the file is damaged") from None
    if tied(model) and "model.embed_tokens.weight" in weights:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    wrong = [n for n in sorted(expected.keys() | weights) if n not in weights or expected.get(n) != weights[n].shape]
    if wrong:
        raise ValueError(f"the weights in {path} do not fit its config.json: {wrong[0]} is the first of {len(wrong)} "
                         "that are missing, too many or of another shape")
    model.load_state_dict(weights, strict=True)


def tied(model: torch.nn.Module) -> bool:
    return getattr(model.config, "tie_word_embeddings", False)


def save(path, model: torch.nn.Module, tokenizer: Tokenizer | None = None, stop_tokens=(), *, recipe: dict, optimizer=None,
         state=None):
    """Write a checkpoint directory that transformers loads as it is (a classifier without tokenizer: torchvision's
    names). Appears whole or not at all.

    Everything is written to a temporary directory beside `path`, flushed to disk, then renamed. Raises FileExistsError
    if `path` exists.
    """
    path = Path(path)
    if path.exists():
        raise FileExistsError(f"{path} exists: nothing is overwritten")
    temporary = path.with_name(path.name + ".incomplete")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    config = model.config.to_hf()
    if tokenizer is not None:
        config["eos_token_id"] = sorted(stop_tokens)
        generation = {"eos_token_id": sorted(stop_tokens), "do_sample": True, "temperature": 1.0}
        write_json(temporary / "generation_config.json", generation)
        tokenizer.save(temporary)
    write_json(temporary / "config.json", config)
    write_json(temporary / "recipe.json", recipe)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if tied(model):
        del weights["lm_head.weight"]  # one tensor under two names: the file holds it once
    save_file(weights, temporary / "model.safetensors", metadata={"format": "pt"})
    if optimizer is not None:
        save_file(optimizer_tensors(model, optimizer), temporary / "optimizer.safetensors")
        write_json(temporary / "state.json", state)
    for file in [*temporary.iterdir(), temporary]:
        _flush(file)
    os.rename(temporary, path)
    _flush(path.parent)


def set_latest(run, name: str):
    """Point RUN/latest at a checkpoint, which must be whole already."""
    temporary = Path(run) / "latest.incomplete"
    temporary.write_text(name + "\n")
    _flush(temporary)
    os.replace(temporary, Path(run) / "latest")
    _flush(run)


def optimizer_tensors(model, optimizer) -> dict[str, torch.Tensor]:
    """The optimizer's state by parameter name: Adam's `NAME.exp_avg`, `.exp_avg_sq`, `.step`, SGD's `.momentum_buffer`."""
    return {f"{name}.{key}": value.contiguous()
            for name, parameter in model.named_parameters()
            for key, value in optimizer.state.get(parameter, {}).items() if value is not None}


def load_optimizer(path, model, optimizer):
    """The reverse of `optimizer_tensors`, on the parameters' devices."""
    with safe_open(Path(path) / "optimizer.safetensors", "pt") as file:
        for full_name in file.keys():  # noqa: SIM118 (no mapping, only a file with keys)
            name, key = full_name.rsplit(".", 1)
            parameter = model.get_parameter(name)
            value = file.get_tensor(full_name)
            if key != "step":  # Adam counts on the CPU
                value = torch.empty_like(parameter).copy_(value)  # its device, its memory format
            optimizer.state[parameter][key] = value


def write_json(path: Path, value):
    """Appears whole or not at all."""
    temporary = path.with_name(path.name + ".incomplete")
    temporary.write_text(json.dumps(value, indent=2) + "\n")
    os.replace(temporary, path)


def _flush(path):
    """fsync of a file or directory, so that a rename never gets ahead of the bytes."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
