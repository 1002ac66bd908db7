# Everything sets itself up in .venv: `make demo` and `make test` need only Python 3.11+.

PYTHON ?= python3
GPU_PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# What the tests were written on; `make constraints` pins all the rest around it.
CHOSEN := torch==2.13.0 jax==0.10.2 jaxlib==0.10.2
# The oldest releases that pyproject.toml allows.
OLDEST := torch==2.11.0 jax==0.10.0 jaxlib==0.10.0 numpy==2.0.0 rich==13.0.0 \
  llvmlite==0.45.0 transformers==5.0.0 diffusers==0.38.0

# Makes a virtual environment, if there is none. Names no release of pip: Python brings its own.
define environment
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || (echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..."; exit 1)
test -d $(1) || $(PYTHON) -m venv $(1)
endef

.PHONY: demo check test test-all gpu-check test-latest test-oldest lint format bench examples docs site constraints dist clean

# setuptools first, and no environment of its own to build in: pip would take the newest there.
$(READY): pyproject.toml constraints.txt
	$(call environment,$(VENV))
	$(BIN)/python -m pip install --quiet --constraint constraints.txt setuptools
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation \
	  --editable '.[dev]'
	@touch $(READY)

demo: $(READY)  ## six real models: checked against eager, timed against eager and Inductor
	$(BIN)/python -m bench.demo

check: $(READY)  ## two minutes, while one writes: lint, and the tests nearest to what has changed
	$(BIN)/python -m tests.check

test: $(READY)  ## the test suite without the exhaustive sweeps
	$(BIN)/python -m pytest -n 2 -m 'not slow' -p tests.reached

# A sweep may take its time: what writes the stacks of a hanging test may crash one that goes on.
test-all: $(READY)  ## everything, the exhaustive sweeps included (hours)
	$(BIN)/python -m pytest -n 2 -o faulthandler_timeout=7200

# On the Python that has torch and jax with the plugin for CUDA: nothing is installed.
gpu-check:  ## eight minutes on a GPU: what works there, how fast, in gpu-check/report.md
	$(GPU_PYTHON) -m bench.gpu_check

# Never up to date: the index may have something newer since the last time.
test-latest:  ## the tests that are not slow, on the newest releases that our ranges allow
	$(call environment,.venv-latest)
	.venv-latest/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager \
	  --editable '.[dev]'
	.venv-latest/bin/python -m pytest -n 2 -m 'not slow'

test-oldest:  ## the tests that are not slow, on the oldest releases that our ranges allow
	$(call environment,.venv-oldest)
	.venv-oldest/bin/python -m pip install --quiet $(OLDEST) --editable '.[dev]'
	.venv-oldest/bin/python -m pytest -n 2 -m 'not slow'

lint: $(READY)  ## style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## what lint would complain about, mended where it can be
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## eight models, call overhead, forms, an encoder, training, decoding, serving, dynamic sizes, depth
	$(BIN)/python -m bench run --suite quick
	$(BIN)/python -m bench.overhead
	$(BIN)/python -m bench.forms
	$(BIN)/python -m bench.encoder
	$(BIN)/python -m bench.training
	$(BIN)/python -m bench.decode
	$(BIN)/python -m bench serve
	$(BIN)/python -m bench.dynamic
	$(BIN)/python -m bench.depth

examples: $(READY)  ## a convolutional net on digits and a GPT on Python, trained by train_step
	$(BIN)/python -m docs.examples.digits
	$(BIN)/python -m docs.examples.gpt

docs: $(READY)  ## the generated pages
	$(BIN)/python -m docs.supported_ops
	$(BIN)/python -m docs.switches
	$(BIN)/python -m docs.torch_xla_names

# The notice that is switched off tells of other tools for the same files.
site: $(READY)  ## the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo 'read build/site/index.html; its search needs a server: python3 -m http.server -d build/site'

# A CPU build of torch calls itself 2.13.0+cpu: the pin is the release, whichever build it is.
constraints:  ## pin anew everything that .venv gets
	rm -rf .venv-constraints
	$(call environment,.venv-constraints)
	.venv-constraints/bin/python -m pip install --quiet $(CHOSEN) '.[dev,peers]'
	( echo '# Written by `make constraints`: what the other targets install, on $(CHOSEN).'; \
	  .venv-constraints/bin/python -m pip freeze --all --exclude pip --exclude xla-dynamo \
	  | sed 's/+cpu$$//' ) > constraints.txt
	rm -rf .venv-constraints

dist: $(READY)  ## a source distribution, and a wheel built from it, in dist/
	$(BIN)/python -m build --no-isolation

clean:
	rm -rf $(VENV) .venv-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .faults
