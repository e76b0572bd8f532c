"""TRL's options: those that MaxRLConfig takes, and for the others why not and what instead.

The names are those of TRL 1.16's GRPOConfig. maxrl/run/coming_from_trl.md has those that are taken.
"""

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from maxrl.learning.config import Config, as_kind
from maxrl.run.trl.scripted import Scripted, of_process
from maxrl.system.arguments import asks, guess, near
from maxrl.system.errors import UsageError

# Options of TRL that are refused: why, what to do instead, and their names. NAME=VALUE is what TRL
# has by default, if it has something, and what is done here.
REFUSED = {
    "rollouts come from the trained model itself; to keep vLLM, change only the advantages, as in "
    "maxrl/run/other_trainers.md": "use_vllm=false",
    "rollouts come from the trained model itself; `wave_rows` and `kv_memory_gb` set memory": (
        "use_transformers_continuous_batching=false use_transformers_paged=false "
        "cache_implementation"
    ),
    "training samples what it scores, or estimators are biased; evaluations have "
    "`eval_temperature` and `eval_top_p`": (
        "temperature=1.0 top_p=1.0 top_k=0 min_p repetition_penalty=1.0 generation_kwargs"
    ),
    "a response calls no tools; write into the prompt what they would say": (
        "max_tool_calling_iterations"
    ),
    "the ratio is each token's and is clipped; use `epsilon` and `epsilon_high`": (
        "delta importance_sampling_level=token off_policy_mask_threshold"
    ),
    "rewards are summed before they are compared; use `reward_weights`": (
        "multi_objective_aggregation=sum_then_normalize"
    ),
    "the KL penalty is k3, or k2 with `kl`, to the initial model; use `beta`": (
        "use_bias_correction_kl=false sync_ref_model=false"
    ),
    "all response tokens are trained on; `zero_reward_at_limit` gives cut ones 0": (
        "mask_truncated_completions=false top_entropy_quantile=1.0"
    ),
    "the weight of the entropy is constant; use `entropy_coef`": "use_adaptive_entropy=false",
    "weights are float32 and forwards bfloat16; use `bf16`": (
        "model_init_kwargs fp16=false fp16_full_eval=false bf16_full_eval=false tf32 "
        "cast_lm_head_to_fp32=false"
    ),
    "no code of a checkpoint is run; the supported models need none": "trust_remote_code=false",
    "chat templates get no settings; change the template": "chat_template_kwargs",
    "models are dense; leave it out": "router_aux_loss_coef",
    "an epoch is all prompts in an order by `seed`; leave it out": (
        "shuffle_dataset=true data_seed train_sampling_strategy=random ignore_data_skip=false "
        "dataloader_in_order=true"
    ),
    "a batch is per_device_train_batch_size x ranks x steps_per_generation; use these": (
        "generation_batch_size"
    ),
    "the optimizer is torch's; use `optim`, `adam_beta1` and `weight_decay`": (
        "optim_args optim_target_modules adam_epsilon=1e-8 lr_scheduler_kwargs neftune_noise_alpha "
        "label_smoothing_factor=0.0"
    ),
    "the divisor is summed over micro-batches and ranks; leave it out": (
        "average_tokens_across_devices=true"
    ),
    "the model runs as plain PyTorch; leave it out": (
        "torch_compile=false torch_compile_backend torch_compile_mode use_liger_kernel=false"
    ),
    "it goes by its older name; use `gradient_checkpointing`": "activation_checkpointing",
    "a model is divided by torch's fully_shard; use `fsdp`": (
        "deepspeed fsdp_config parallelism_config accelerator_config"
    ),
    "memory does not change the batch; use `micro_batch_tokens` and `wave_rows`": (
        "auto_find_batch_size=false torch_empty_cache_steps"
    ),
    "nothing is sent to the hub; use save_model(DIR), then `hf upload NAME DIR`": (
        "push_to_hub=false hub_model_id log_completions_hub_repo trackio_space_id "
        "trackio_bucket_id trackio_static_space_id"
    ),
    "training ends with its last checkpoint; `maxrl eval RUN/step-*` compares all": (
        "load_best_model_at_end=false"
    ),
    "checkpoints are for resuming; save_model writes the model alone": (
        "save_only_model=false restore_callback_states_from_checkpoint=false"
    ),
    "metrics are those of maxrl/run/README.md; leave it out": (
        "include_num_input_tokens_seen=no include_for_metrics eval_on_start=false "
        "batch_eval_metrics=false prediction_loss_only=false debug"
    ),
    "a signal saves the run before it ends; leave it out": "enable_jit_checkpoint=false",
}
# Options of TRL that may have any value: they change logs, files or speed, or belong to an option
# that is refused.
NO_EFFECT = (
    "vllm_mode=colocate vllm_model_impl=vllm vllm_enable_sleep_mode=false "
    "vllm_structured_outputs_regex vllm_server_base_url vllm_server_host=0.0.0.0 "
    "vllm_server_port=8000 vllm_server_timeout=240.0 vllm_group_port=51216 "
    "vllm_gpu_memory_utilization=0.3 vllm_max_model_length vllm_tensor_parallel_size=1 "
    "vllm_importance_sampling_correction=true vllm_importance_sampling_mode=sequence_mask "
    "vllm_importance_sampling_clip_max=3.0 vllm_importance_sampling_clip_min "
    "vllm_importance_sampling_cap transformers_continuous_batching_config "
    "sapo_temperature_neg=1.05 sapo_temperature_pos=1.0 vespo_k_pos=2.0 vespo_lambda_pos=3.0 "
    "vespo_k_neg=3.0 vespo_lambda_neg=2.0 ref_model_mixup_alpha=0.6 ref_model_sync_steps=512 "
    "entropy_coef_min=0.0 entropy_coef_max=1.0 entropy_coef_delta=0.005 entropy_target=0.2 "
    "liger_kernel_config activation_checkpointing_kwargs hub_token hub_private_repo "
    "hub_strategy=every_save hub_always_push=false hub_revision greater_is_better "
    "ds3_gather_for_generation=true pad_to_multiple_of=auto disable_dropout=false "
    "use_cache=false gradient_checkpointing_kwargs label_names length_column_name=length "
    "logging_strategy=steps logging_first_step=false log_on_each_node=true "
    "logging_nan_inf_filter=true log_level=passive log_level_replica=warning disable_tqdm "
    "log_multimodal=true num_completions_to_print log_unique_prompts=false "
    "per_device_eval_batch_size=8 eval_do_concat_batches=true eval_use_gather_object=false "
    "eval_accumulation_steps save_on_each_node=false dataloader_drop_last=false "
    "dataloader_pin_memory=true dataloader_persistent_workers=false dataloader_prefetch_factor "
    "dataloader_multiprocessing_context ddp_find_unused_parameters ddp_bucket_cap_mb "
    "ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout=1800 project=huggingface "
    "skip_memory_metrics=true do_train=false do_eval=false do_predict=false local_rank=-1 "
    "remove_unused_columns=false"
)
# Options that TRL and transformers had until lately, and what to do instead.
DROPPED = {
    "use `eval_strategy`": "evaluation_strategy",
    "use `use_cpu`": "no_cuda",
    "use `per_device_train_batch_size`": "per_gpu_train_batch_size",
    "use `optim`": "adafactor",
    "use `bf16`": "half_precision_backend fp16_backend fp16_opt_level",
    "use `fsdp`": "fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap",
    "no run is overwritten; use `resume_from_checkpoint`, or another `output_dir`": (
        "overwrite_output_dir"
    ),
    "rollouts come from the trained model itself; leave it out": (
        "vllm_device vllm_dtype vllm_max_model_len vllm_guided_decoding_regex"
    ),
    "leave it out": (
        "logging_dir save_safetensors group_by_length per_gpu_eval_batch_size use_mps_device "
        "jit_mode_eval use_ipex tpu_num_cores tpu_metrics_debug past_index torchdynamo ray_scope "
        "use_legacy_prediction_loop include_inputs_for_metrics include_tokens_per_second "
        "push_to_hub_model_id push_to_hub_organization push_to_hub_token mp_parameters "
        "dispatch_batches split_batches use_liger_loss wandb_log_unique_prompts"
    ),
}


def defaults(names: str) -> dict[str, Any]:
    """Return the values in a text of NAME=VALUE and NAME, which stands for None."""
    found = {}
    for word in names.split():
        name, equals, value = word.partition("=")
        found[name] = guess(value) if equals else None
    return found


def by_name(sentences: dict[str, str]) -> dict[str, str]:
    """Return the sentence that stands for each name."""
    return {name: said for said, names in sentences.items() for name in defaults(names)}


WHY_NOT = by_name(REFUSED)
GONE = by_name(DROPPED)
# What scripts read as the value of an option that is not taken.
USUAL = defaults(" ".join([*REFUSED.values(), NO_EFFECT]))
# Arguments of GRPOTrainer that are not here: why, and what instead.
ABSENT = {
    "compute_metrics": "a metric is a reward function of weight 0",
    "optimizers": "the optimizer is torch's AdamW, SGD or Muon; use optim, or optimizer",
    "tools": "a response calls no tools; write what they would say into the prompt",
    "environment_factory": "a response is one turn; a reward function may start what it needs",
    "rollout_func": "rollouts come from the model that is trained",
    "quantization_config": "weights are float32; use peft_config to save memory",
    "tokenizer": "TRL calls it processing_class",
    "reward_processing_classes": "a reward is a function; call the reward model in it",
}


def taken(default: object, ours: str) -> Any:
    """Return a field of MaxRLConfig: its default, and what it is called in train.py."""
    return field(default=default, metadata={"help": ours})


@dataclass(init=False)
class MaxRLConfig(Scripted):
    """The options of MaxRLTrainer, with the names of TRL's GRPOConfig.

    The options of train.py that TRL has none for, such as micro_batch_tokens or no_verdict, are
    taken by their own names and precede these. UsageError for any other option, with the reason.
    """

    called = "MaxRLConfig"
    begun = False

    output_dir: str = taken(None, "--out")
    num_generations: int = taken(8, "--rollouts")
    per_device_train_batch_size: int = taken(8, "--prompts, by TRL's arithmetic")
    gradient_accumulation_steps: int = taken(1, "--prompts, by TRL's arithmetic")
    steps_per_generation: int | None = taken(None, "--minibatches, by TRL's arithmetic")
    num_iterations: int = taken(1, "--passes")
    num_train_epochs: float = taken(3.0, "--epochs, by TRL's arithmetic")
    max_steps: int = taken(-1, "--steps, counted in updates")
    max_completion_length: int = taken(512, "--max-response")
    max_prompt_length: int | None = taken(None, "--max-prompt")
    learning_rate: float = taken(1e-6, "--lr")
    lr_scheduler_type: str = taken("linear", "--schedule")
    warmup_steps: float = taken(0.0, "--warmup-steps")
    warmup_ratio: float = taken(0.0, "--warmup-steps, as a share")
    optim: str = taken("adamw_torch_fused", "--optimizer")
    weight_decay: float = taken(0.0, "--weight-decay")
    adam_beta1: float = taken(0.9, "--betas")
    adam_beta2: float = taken(0.999, "--betas")
    max_grad_norm: float = taken(1.0, "--max-grad-norm")
    scale_rewards: str | bool = taken(
        "mean", "--estimator maxrl (mean), grpo (group) or dr_grpo (none)"
    )
    loss_type: str = taken(
        "dapo", "--aggregation token (dapo, bnpo), sequence (luspo) or constant (dr_grpo)"
    )
    epsilon: float = taken(0.2, "--clip")
    epsilon_high: float | None = taken(None, "--clip")
    beta: float = taken(0.0, "--beta")
    entropy_coef: float = taken(0.0, "--entropy-bonus")
    reward_weights: tuple[float, ...] | None = taken(None, "--reward-weights")
    bf16: bool | None = taken(None, "--precision")
    gradient_checkpointing: bool = taken(True, "--gradient-checkpointing")
    fsdp: None | str | bool | tuple[str, ...] = taken(None, "--shard")
    use_cpu: bool = taken(False, "--device cpu")
    full_determinism: bool = taken(False, "--deterministic")
    seed: int = taken(42, "--seed")
    dataloader_num_workers: int = taken(0, "--workers")
    logging_steps: int = taken(10, "a line of log_history; metrics.jsonl has every step")
    log_completions: bool = taken(False, "--show-every logging_steps")
    report_to: None | str | tuple[str, ...] = taken("none", "--track tensorboard, wandb")
    run_name: str | None = taken(None, "the name of the W&B run, unless WANDB_NAME is set")
    save_strategy: str = taken("steps", "--save-every")
    save_steps: float = taken(500.0, "--save-every")
    save_total_limit: int | None = taken(None, "--keep")
    eval_strategy: str = taken("no", "--eval-every")
    eval_steps: float | None = taken(None, "--eval-every")
    eval_delay: float = taken(0.0, "--eval-from")
    num_generations_eval: int | None = taken(None, "--eval-samples")
    metric_for_best_model: str | None = taken(None, "what EarlyStoppingCallback looks at")
    resume_from_checkpoint: None | str | bool = taken(
        None, "--resume, from the newest checkpoint: True or its path"
    )

    def __init__(self, output_dir: str | Path | None = None, **given: object):
        given["output_dir"] = "trainer_output" if output_dir is None else output_dir
        for name, value in given.items():
            setattr(self, name, value)
        best = self.metric_for_best_model
        if best and self.greater_is_better is None:
            setattr(self, "greater_is_better", not best.endswith("loss"))  # noqa: B010

    def __setattr__(self, name: str, value: object) -> None:
        """Set an option as its type has it; UsageError for one that is not here."""
        if getattr(value, "shape", ()) != ():
            raise UsageError(f"{name} is an array, which no option takes: write a number or a list")
        if name in WHY_NOT and asks(value, USUAL[name]):
            raise UsageError(f"{name} = {value!r:.40} is not here: {WHY_NOT[name]}")
        if name in GONE:
            raise UsageError(f"{name} is gone from TRL or transformers: {GONE[name]}")
        known = KINDS | USUAL
        if name not in known:
            hint = near(name, known)
            said = f"{name} is an option of neither TRL nor train.py"
            raise UsageError(f"{said}; {hint}" if hint else said)
        if name in KINDS:
            value = as_kind(name, KINDS[name], value)
        if name == "output_dir":
            value = os.path.expanduser(str(value or "trainer_output"))
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        """Return TRL's default of an option that is not taken, as scripts ask push_to_hub."""
        known = USUAL | of_process()
        return known[name] if name in known else super().__getattr__(name)

    def to_dict(self) -> dict:
        """Return the options that are taken, by name."""
        return {name: getattr(self, name) for name in FIELDS} | self.further

    to_sanitized_dict = to_dict

    @property
    def further(self) -> dict:
        """The options that have train.py's names."""
        ours = Config.__dataclass_fields__.keys() - FIELDS.keys()
        return {name: value for name, value in vars(self).items() if name in ours}


# What train.py calls each option of MaxRLConfig, in words.
FIELDS: dict[str, str] = {f.name: f.metadata["help"] for f in dataclasses.fields(MaxRLConfig)}
# The type of each option.
KINDS: dict = Config.__annotations__ | MaxRLConfig.__annotations__
