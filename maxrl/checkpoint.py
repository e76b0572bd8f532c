"""Checkpoints: Hugging Face directories in and out, the training state beside them, and where a run keeps them.

    RUN/recipe.json      the resolved recipe and the command        RUN/metrics.jsonl   one object per step
    RUN/latest           the name of the newest checkpoint          RUN/step-000160/    a checkpoint:
        config.json, generation_config.json, model.safetensors, tokenizer.json, tokenizer_config.json, and what else the
        loaded checkpoint had for its tokenizer  (for transformers and vLLM; a classifier has config.json and
        model.safetensors, with torchvision's names)
        recipe.json, optimizer.safetensors, state.json                                                 (for --resume)

A run with --lora-rank writes a PEFT adapter instead (adapter_config.json, adapter_model.safetensors; the model stays where
it was) with those three files; with --lora-merge a checkpoint of the merged model, and the adapter in its folder lora/.
"""

import json
import os
import re
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode

from maxrl import distributed
from maxrl.models import from_config
from maxrl.models.lora import from_adapter, has_lora, lora_state, merged_state
from maxrl.models.transformer import Transformer
from maxrl.tokenizer import Tokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}  # of files that are read
HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "merges.txt", "tokenizer.model")


def find(path) -> Path:
    """The checkpoint directory that `path` means: itself, the newest one of a run directory, or a copy from the hub."""
    path = download(str(path)) if on_hub(path) else Path(path)
    if (path / "latest").exists():
        path = path / (path / "latest").read_text().strip()
    if not any((path / name).exists() for name in ("config.json", "adapter_config.json")):
        raise FileNotFoundError(f"{path} is neither a checkpoint (no config.json) nor a run directory with one")
    return path


def on_hub(path) -> bool:
    name, path = str(path), Path(path)
    return bool(re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name)) and not (
        path.exists() or path.parent.exists() or name.startswith("runs/"))


def base_name(path) -> str:
    """What an adapter calls the model it is made for: a hub id as it is, else the checkpoint directory itself."""
    return str(path) if on_hub(path) else str(find(path).resolve())


def download(name: str) -> Path:
    """The hub's files that a checkpoint consists of, from huggingface_hub's cache where they are there already."""
    try:
        from huggingface_hub import snapshot_download
        return Path(snapshot_download(name, allow_patterns=HUB_FILES, ignore_patterns="*/*"))
    except Exception as error:  # of a network there are many kinds
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise FileNotFoundError(f"{name} is no directory here and could not be fetched from the hub ({reason[0]}); with a "
                                f"network, `hf download {name} --local-dir {name}` puts it here") from None


class Uninitialised(TorchFunctionMode):
    """Parameters made within stay as the memory was, for a checkpoint to fill: 4 billion random numbers take a minute."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if getattr(function, "__module__", None) == "torch.nn.init":
            return (args or [kwargs["tensor"]])[0]
        return function(*args, **kwargs or {})


def load_model(path) -> tuple[torch.nn.Module, Tokenizer | None, list[int]]:
    """Model (float32), tokenizer and stop tokens (all of generation_config's eos_token_id) of a checkpoint directory.

    A classifier has neither tokenizer (None) nor stop tokens. A PEFT directory gives its base model with the adapter.
    """
    path = find(path)
    if (path / "adapter_config.json").exists():
        return load_adapted(path)
    config = json.loads((path / "config.json").read_text())
    with Uninitialised():
        model = from_config(config)
    load_weights(path, model)
    if not isinstance(model, Transformer):
        return model, None, []
    if (path / "generation_config.json").exists():
        model.generation_config = json.loads((path / "generation_config.json").read_text())
    return model, Tokenizer.load(path), end_tokens(model.generation_config) or end_tokens(config)


def load_adapted(path: Path) -> tuple[torch.nn.Module, Tokenizer, list[int]]:
    """As load_model, of a PEFT directory: what it does not hold is its base model's."""
    base = json.loads((path / "adapter_config.json").read_text()).get("base_model_name_or_path")
    if not base:
        raise ValueError(f"{path} is a LoRA adapter whose adapter_config.json names no base_model_name_or_path")
    try:
        model, tokenizer, stop = load_model(base)
    except FileNotFoundError as error:
        raise ValueError(f"{path} is a LoRA adapter and its base model is not there ({error}): put it back, or write where "
                         "it is now as base_model_name_or_path into adapter_config.json") from None
    return load_lora(model, path), Tokenizer.load(path) if (path / "tokenizer.json").exists() else tokenizer, stop


def load_lora(model: torch.nn.Module, directory) -> torch.nn.Module:
    """`model`, the base, with the adapter of a PEFT directory."""
    directory = Path(directory)
    file = directory / "adapter_model.safetensors"
    if not file.exists():
        raise FileNotFoundError(f"{directory} holds no {file.name}; a pickle is not read, because it can run code")
    try:
        return from_adapter(model, json.loads((directory / "adapter_config.json").read_text()), load_file(file))
    except SafetensorError as error:
        raise ValueError(f"{file} cannot be read ({error}): the file is damaged") from None
    except ValueError as error:
        raise ValueError(f"{directory}: {error}") from None


def end_tokens(config: dict) -> list[int]:
    """`eos_token_id` as a list, whether it is one, one number or nothing."""
    ids = config.get("eos_token_id")
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)


def weight_files(path: Path) -> list[Path]:
    """The checkpoint's safetensors: one, or the shards that its index names."""
    if (path / "model.safetensors").exists():
        return [path / "model.safetensors"]
    index = path / "model.safetensors.index.json"
    if not index.exists():
        pickles = sorted(f.name for f in path.iterdir() if f.suffix in (".bin", ".pt", ".pth"))
        raise FileNotFoundError(f"{path} holds no model.safetensors" + (
            f" but {pickles[0]}, which is not read, because a pickle can run code when it is loaded; to convert it: python -c "
            f"\"from transformers import AutoModelForCausalLM as M; M.from_pretrained('{path}').save_pretrained('{path}')\""
            if pickles else ""))
    names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ValueError(f"{index} names {name!r}: only *.safetensors beside it are read")
        if not (path / name).exists():
            raise FileNotFoundError(f"{path} lacks {name}, which its index names: the download is not complete")
    return [path / name for name in names]


def load_weights(path: Path, model: torch.nn.Module):
    """Every tensor of the model from the directory's safetensors, none too many; ValueError where they do not fit.

    They are copied one by one into the model's own: beside it no more than one tensor is in memory.
    """
    state, filled, wrong = model.state_dict(), set(), []
    same = {"lm_head.weight": "model.embed_tokens.weight"} if tied(model) else {}
    for file in weight_files(path):
        try:
            with safe_open(file, "pt") as opened:
                for name in opened.keys():  # noqa: SIM118 (no mapping, only a file with keys)
                    if name.endswith("rotary_emb.inv_freq"):  # a table that old checkpoints hold, made from config.json
                        continue
                    tensor, ours = opened.get_tensor(name), state.get(name)
                    if ours is None or ours.shape != tensor.shape:
                        wrong.append(f"{name} {tuple(tensor.shape)} is " + (
                            "too many" if ours is None else f"not {tuple(ours.shape)}"))
                    elif tensor.dtype not in (*DTYPES.values(), ours.dtype):
                        wrong.append(f"{name} is {tensor.dtype}")
                    elif same.get(name, name) in filled and not torch.equal(ours, tensor.to(ours.dtype)):
                        wrong.append(f"{name} differs from what it is tied to")
                    else:
                        ours.copy_(tensor)
                    filled.add(same.get(name, name))
        except SafetensorError as error:
            raise ValueError(f"the weights in {path} cannot be read ({error}): the file is damaged") from None
    wrong += [f"{name} is missing" for name in state if same.get(name, name) not in filled]
    if wrong:
        raise ValueError(f"the weights in {path} do not fit its config.json: {wrong[0]}"
                         + f", the first of {len(wrong)} that do not" * (len(wrong) > 1))


def tied(model: torch.nn.Module) -> bool:
    return getattr(model.config, "tie_word_embeddings", False)


def save(path, model: torch.nn.Module, tokenizer: Tokenizer | None = None, stop_tokens=(), *,
         recipe: dict | None = None, optimizer=None, state=None, dtype: str = "float32", merge: bool = False):
    """Write a checkpoint directory that transformers loads as it is (a classifier without tokenizer: torchvision's
    names). Appears whole or not at all. What a loaded model's config.json and generation_config.json said still stands
    in them. dtype: of the weights, "float32" or, for use but not to train on, "bfloat16". A model with LoRA is written as
    its adapter, which stays float32, or with `merge` as a plain model whose folder lora/ holds what resuming needs.

    Everything is written to a temporary directory beside `path`, flushed to disk, then renamed. Raises FileExistsError
    if `path` exists.
    """
    path = Path(path)
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f"weights are saved in float32 or bfloat16, not {dtype}")
    if path.exists():
        raise FileExistsError(f"{path} exists: nothing is overwritten")
    temporary = path.with_name(path.name + ".incomplete")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    adapted = has_lora(model)
    if not adapted or merge:
        write_model(temporary, model, tokenizer, stop_tokens, dtype, beside_others=optimizer is not None and not adapted)
    training = temporary / "lora" if adapted and merge else temporary
    if adapted:
        training.mkdir(exist_ok=True)
        write_json(training / "adapter_config.json", model.adapter_config)
        tensors = {name: tensor.contiguous() for name, tensor in lora_state(model).items()}
        save_file(tensors, training / "adapter_model.safetensors", metadata={"format": "pt"})
    for folder in {temporary, training} if recipe is not None else ():
        write_json(folder / "recipe.json", recipe)
    if optimizer is not None:
        save_file(optimizer_tensors(model, optimizer), training / "optimizer.safetensors")
        write_json(training / "state.json", state)
    for file in [*temporary.rglob("*"), temporary]:
        _flush(file)
    os.rename(temporary, path)
    _flush(path.parent)


def write_model(directory: Path, model, tokenizer, stop_tokens, dtype: str, beside_others: bool):
    """Everything of a checkpoint that is not for --resume; with an index of the weights if other tensors lie beside."""
    if tokenizer is None:
        config = model.config.to_hf()
    else:
        config, generation = model.config.to_hf(dtype), model.generation_config or {"do_sample": True, "temperature": 1.0}
        if set(end_tokens(generation)) != set(stop_tokens):
            generation = generation | {"eos_token_id": sorted(stop_tokens)}
        if not set() < set(end_tokens(config)) <= set(stop_tokens):
            config["eos_token_id"] = sorted(stop_tokens)
        write_json(directory / "generation_config.json", generation)
        tokenizer.save(directory)
    write_json(directory / "config.json", config)
    weights = {name: (tensor.to(DTYPES[dtype]) if tensor.is_floating_point() else tensor).contiguous()
               for name, tensor in merged_state(model).items()}
    if tied(model):
        del weights["lm_head.weight"]  # one tensor under two names: the file holds it once
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    if beside_others:
        # vLLM takes every *.safetensors of a directory for weights, unless an index names those that are.
        index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "model.safetensors")}
        write_json(directory / "model.safetensors.index.json", index)


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
                value = distributed.placed_like(parameter, value)
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
