"""MaxRL (Maximum Likelihood Reinforcement Learning, arXiv 2602.02710) in plain PyTorch.

The map of the house. The numbers are the order in which to read the method.

train.py                   1  is Algorithm 1: prompts, rollouts, rewards, advantages, gradient, optimizer step.
eval.py                       measures pass@k of checkpoints, with standard errors.
sample.py                     shows rollouts, a right one next to a wrong one.
maxrl/                        THE METHOD
  advantages.py            2  turns rewards (P, N) into advantages (P, N): every estimator and what it weighs.
  losses.py                3  turns advantages into a loss, and says what one step divides by.
  rollouts.py              4  holds the rollouts and cuts them into micro-batches.
  rounds.py                   samples a prompt until a round of its rollouts has a success.
  packing.py                  cuts rows of many lengths into micro-batches with little padding.
  policy.py                5  makes a language model's rollouts and the gradient of their loss.
  sampler.py               6  samples N responses to each prompt, token by token.
  drawing.py                  draws tokens from a distribution: temperature, top-k and top-p.
  models/transformer.py    7  is the language model.
  models/attention.py      8  says which token attends to which, and keeps keys and values.
  models/linear.py            multiplies float32 by oneDNN, where that is faster.
  models/rope.py              turns positions into rotations of queries and keys.
  models/hf_config.py         reads and writes the config.json of published models.
  models/lora.py              adds a LoRA adapter to a frozen model.
  models/resnet.py            is the image classifier.
  classifier.py               is the policy of an image classifier, with the same verbs as policy.py.
  estimator.py                keeps the registry of estimators and checks what they are given.
  waves.py                    decides how many rollouts fit into memory at once.
  graphs.py                   lets a GPU repeat a sampling step by itself.
  batches.py                  decides which prompts a step takes, and reads them ahead of time.
  evaluate.py                 counts how many rollouts of each prompt succeed.
  metrics.py                  computes pass@k, majority votes and the statistics of rewards.
  reward_functions.py         calls the user's reward functions.
  ready_rewards.py            has the reward functions that --reward knows by name.
  verifiers.py                compares a final answer with the right one.
  tasks/base.py               says what a task is.
  tasks/maze.py               makes, judges and draws mazes.
  tasks/images.py             reads images and their classes.
  tasks/gsm8k.py              asks school word problems.
  tasks/math.py               asks competition problems.
  tasks/prompts.py            reads the user's own prompts.
  tasks/reverse_text.py       asks for a text backwards, as a smoke test.
  tasks/subset_sum.py         asks for numbers that add up to a target.
  tasks/rows.py               reads data sets and gives their columns the names that tasks need.
  recipes.py                  has one function per experiment, and the source of every number.
  laptop_recipes.py           has those of a reduced scale.
  config.py                   lists all options, one field each.
  checkpoint.py               reads and writes Hugging Face and PEFT directories.
  distributed.py              joins the ranks and sums numbers over them.
  sharding.py                 divides one model over the ranks.
  errors.py                   defines the errors that end with one line.
  plots.py                    keeps the command `python -m maxrl.plots`.
  report.py                   keeps the command `python -m maxrl.report`.
  toy.py                      keeps the command `python -m maxrl.toy`.
  grid.py                     keeps the command `python -m maxrl.grid`.
  __main__.py                 keeps the command `maxrl` of an installed package.
maxrl/io/                     BELOW THE METHOD: WHAT COMES FROM OTHERS
  arguments.py                splits and reads the words of a command line.
  files.py                    writes files completely or not at all, with checksums.
  tables.py                   reads JSONL, JSON, CSV and parquet files.
  hub_files.py                finds models and data sets, here or on a hub.
  tokenizer.py                turns text into token ids and back.
  chat_template.py            renders a chat template in a sandbox.
  sandbox.py                  runs work on other people's input in a process with limits.
  user_code.py                imports the user's own functions and classes by name.
maxrl/run/                    ABOVE THE METHOD: WHAT KEEPS A RUN ALIVE
  command_line.py             reads a recipe and its options, and prints --help.
  cli.py                      begins and ends the scripts, with exit codes.
  setup.py                    builds task, rewards, policy and optimizer.
  directory.py                holds the run directory: lock, checkpoints, resuming, signals.
  logger.py                   writes metrics.jsonl and the lines that people read.
  samples.py                  writes samples.jsonl: a right and a wrong response of a few prompts.
  profile.py                  records what the time of a few steps goes into (--profile).
  trackers.py                 sends metrics to TensorBoard and Weights & Biases.
  banner.py                   says what a run is at its start and what to do next at its end.
  dry_run.py                  estimates the memory of each GPU.
  sampling_options.py         has the options that eval.py and sample.py share.
  table.py                    prints the tables of eval.py.
  grid.py                     runs a product of options, one run after another or under Slurm.
maxrl/study/                  NEXT TO THE METHOD
  plots.py                    draws the figures.
  report.py                   makes one HTML page of runs: curves, right and wrong responses, times.
  toy.py                      runs the estimators without a model.
  gradient_norms.py           measures the gradient of each prompt against its pass rate.

Letters, in every shape comment:
    P  prompts of the whole batch (P_local: of this rank)     B  rows of a tensor, P_local * N
    N  rollouts per prompt, K of them successes               L  tokens, V vocabulary, D size of an attention head
    p  pass rate, T truncation order (and nothing else), C classes
"""

__version__ = "0.1.0"
