"""What scripts for TRL pass: a model, a tokenizer, an adapter and functions in memory."""

import hashlib
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from maxrl.learning.config import Config
from maxrl.models import hub_files
from maxrl.models.lora import PROJECTIONS
from maxrl.models.tokenizer import Tokenizer
from maxrl.run.trl.options import defaults
from maxrl.system import distributed, files
from maxrl.system.arguments import asks
from maxrl.system.errors import UsageError, refusing

# Fields of a LoraConfig that are read, or that say nothing about what is trained.
READ = defaults(
    "r lora_alpha target_modules base_model_name_or_path revision auto_mapping peft_version "
    "megatron_core qalora_group_size runtime_config"
)
# What is done here, for the fields in which that is not None.
PLAIN = defaults(
    "peft_type=LORA task_type=CAUSAL_LM bias=none lora_dropout=0.0 init_lora_weights=true "
    "inference_mode=false fan_in_fan_out=false use_rslora=false use_dora=false use_qalora=false "
    "lora_bias=false ensure_weight_tying=false"
)


def initial_checkpoint(model: Any, tokenizer: Any, out: Path, peft_config: object) -> str:
    """Return the checkpoint that a run begins with.

    model        a directory, a hub id or a model of transformers
    tokenizer    of transformers, or None
    out          the run directory, which gets a folder initial-CHECKSUM with what is not on disk
    peft_config  None if all parameters are to be trained

    A resumed run, a KL penalty and an adapter need that folder again.
    """
    if tokenizer is not None and not hasattr(tokenizer, "save_pretrained"):
        raise UsageError(
            f"processing_class is a {type(tokenizer).__name__}: pass a tokenizer of transformers"
        )
    if hasattr(model, "peft_config"):
        raise UsageError("the model has an adapter already: pass the base model and peft_config")
    whole = peft_config is None and isinstance(model, torch.nn.Module)
    if whole and not all(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError(
            "the model has frozen parameters, and all of them are trained: call "
            "model.requires_grad_(True), or pass peft_config to train an adapter"
        )
    if isinstance(model, str | Path) and tokenizer is None:
        return str(model)
    written = str(write(model, tokenizer, out)) if distributed.rank() == 0 else ""
    return distributed.from_main(written)


def plain(model: Any) -> Any:
    """Return a model without the wrapper of torch.compile; a name stays as it is.

    UsageError for another wrapper, and for a forward that is not that of transformers: here the
    model's weights are trained by a forward of our own, so that of a subclass would not be run.
    """
    model = getattr(model, "_orig_mod", model)
    name_of(model)
    for module in model.modules() if isinstance(model, torch.nn.Module) else ():
        run = [type(module), *module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        homes = [getattr(each, "__module__", "") for each in run]
        # accelerate replaces a forward by one that moves its inputs to another device.
        own = "forward" in vars(module) and not hasattr(module, "_hf_hook")
        if own or not all(home.startswith(("torch.", "transformers.")) for home in homes):
            raise UsageError(
                f"the model has a {type(module).__name__} with a forward or a hook of its own, "
                "which would not be run: pass a model of transformers as it is loaded"
            )
    return model


def name_of(model: Any) -> str:
    """Return where a model comes from, "" if that is not known."""
    if isinstance(model, str | Path):
        return str(model)
    if not hasattr(model, "save_pretrained"):
        raise UsageError(f"model is a {type(model).__name__}: pass a name or a transformers model")
    return getattr(model.config, "_name_or_path", "")


def versions(model: Any) -> list[int]:
    """Return how often each weight of a model in memory was written; a name has none."""
    return [] if isinstance(model, str | Path) else [each._version for each in model.parameters()]


def handed_back(model: Any, cfg: Config) -> Any:
    """Return the model of transformers that was given, if it has the trained weights in the end.

    Those of an adapter and of a divided model are not the weights that it has.
    """
    if not hasattr(model, "save_pretrained"):
        return None
    if cfg.lora_rank or cfg.shard:
        said = "keeps its weights: trainer.model and save_model() have the trained ones"
        warnings.warn(f"the given model {said}", stacklevel=3)
        return None
    if model.dtype != torch.float32:
        said = "to which the trained weights are rounded: save_model() has them in float32"
        warnings.warn(f"the given model is in {model.dtype}, {said}", stacklevel=3)
    return model


def write(model: Any, tokenizer: Any, out: Path) -> Path:
    """Write model and tokenizer into a folder of `out`; weights on disk are linked."""
    new = out / "initial.incomplete"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        with refusing("", FileNotFoundError, ValueError):
            fill(new, model, tokenizer)
        written = filter(Path.is_file, sorted(new.iterdir()))
        sums = map(files.checksum, written)
        digest = hashlib.sha256("".join(sums).encode()).hexdigest()
        found = out / f"initial-{digest[:8]}"
        if not found.exists():
            new.rename(found)
        return found
    finally:
        shutil.rmtree(new, ignore_errors=True)


def fill(new: Path, model: Any, tokenizer: Any):
    """Write model and tokenizer into the folder `new`."""
    if tokenizer is None:
        if not name_of(model):
            raise UsageError("a model in memory needs its tokenizer: pass processing_class")
        Tokenizer.load(hub_files.find(name_of(model))).save(new)
    else:
        tokenizer.save_pretrained(new)
    if isinstance(model, str | Path):
        source = hub_files.find(model)
        found = {file for pattern in hub_files.MODEL_FILES for file in source.glob(pattern)}
        # An index may name its shards otherwise.
        for file in found | {*filter(Path.exists, hub_files.weight_files(source))}:
            link_or_copy(file.resolve(), new / file.name)
        # The adapter of a run has in its recipe which base it is for.
        record = source / "recipe.json"
        if (source / "adapter_config.json").exists() and record.exists():
            base = files.read_json(record).get("base", "")
            files.write_json(new / hub_files.NEEDS, {"base": base})
    else:
        model.save_pretrained(new)


def link_or_copy(file: Path, new: Path):
    """Make `new` a link to a file, or a copy where the file system has no links."""
    try:
        new.symlink_to(file)
    except OSError:
        shutil.copy(file, new)


def adapter(config: Any) -> dict:
    """Return the options of train.py that a peft.LoraConfig stands for.

    UsageError for what train.py does not have.
    """
    if config is None:
        return {}
    lora = (getattr(config, "peft_type", None) or "LORA") == "LORA"
    if not (lora and hasattr(config, "r") and hasattr(config, "lora_alpha")):
        raise UsageError(f"peft_config is a {type(config).__name__}: pass a peft.LoraConfig")
    if not config.r:
        raise UsageError("peft_config has r = 0: an adapter has a rank of at least 1")
    usual = vars(type(config)()) | PLAIN
    for name, value in vars(config).items():
        if name not in READ and asks(value, usual.get(name)):
            raise UsageError(
                f"peft_config has {name} = {value!r:.40}, which is not here: an adapter is a plain "
                "LoRA without dropout, as rollouts come from the model that is trained"
            )
    modules = getattr(config, "target_modules", None)
    modules = ("q_proj", "v_proj") if modules is None else modules
    if modules == "all-linear":
        modules = PROJECTIONS
    if isinstance(modules, str):
        modules = (modules,)
    # PEFT keeps a set, whose order differs from process to process.
    return {
        "lora_rank": config.r,
        "lora_alpha": config.lora_alpha,
        "lora_projections": tuple(sorted(modules)),
    }


def as_list(functions: object) -> list[Callable | str]:
    """Return reward functions as a list; UsageError for none, and for a reward model."""
    found = functions if isinstance(functions, list | tuple) else [functions]
    if not found or None in found:
        raise UsageError("reward_funcs is needed: functions, or names such as accuracy_reward")
    for function in found:
        if isinstance(function, torch.nn.Module):
            raise UsageError("a reward model is not here: call it in a function of your own")
    return list(found)


def address(function: Callable | str) -> str:
    """Return what recipe.json calls a reward function: its name, or where eval.py can import it."""
    if isinstance(function, str):
        return function
    name = getattr(function, "__name__", type(function).__name__)
    module = getattr(function, "__module__", "__main__")
    if module == "__main__":
        # A notebook has no file.
        module = getattr(sys.modules[module], "__file__", None) or module
    return f"{module}:{name}"
