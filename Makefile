# Everything sets itself up in .venv: `make demo` and `make test` need only Python 3.11+.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-all lint format bench examples docs clean

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || (echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..."; exit 1)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

demo: $(READY)  ## six real models: checked against eager, timed against eager and Inductor
	$(BIN)/python -m bench.demo

test: $(READY)  ## the test suite without the exhaustive sweeps
	$(BIN)/python -m pytest -n 2 -m 'not slow'

# A sweep may take its time: what writes the stacks of a hanging test may crash one that goes on.
test-all: $(READY)  ## everything, the exhaustive sweeps included (hours)
	$(BIN)/python -m pytest -n 2 -o faulthandler_timeout=7200

lint: $(READY)  ## style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## what lint would complain about, mended where it can be
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## eight models, call overhead, forms, an encoder, training, decoding, serving, open sizes, depth
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

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
