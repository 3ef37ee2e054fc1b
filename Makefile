# Every target works on a fresh machine with Python 3.11 and make: it creates .venv first.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help demo sensor convert forecast variance alarm covariates training many-series serve test test-gpu check docs pictures wheel types bench accuracy clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 15

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)  ## the paper's controlled study, small: train, test off the path, figures and report
	$(BIN)/spgru reproduce controlled --scale small

sensor: $(READY)  ## a sensor that fails: train a small GRU, predict with uncertainty, audit it
	$(BIN)/python examples/sensor.py

convert: $(READY)  ## a trained nn.LSTM made probabilistic, without training it again
	$(BIN)/python examples/convert.py

forecast: $(READY)  ## forecasts with intervals: a fortnight of hourly demand, from an array
	$(BIN)/python examples/forecast.py

variance: $(READY)  ## is the variance true? measure it, and put back what the closed form ignores
	$(BIN)/python examples/variance.py

alarm: $(READY)  ## a sensor stream that raises an alarm, one reading at a time
	$(BIN)/python examples/alarm.py

covariates: $(READY)  ## several series with covariates, one of them uncertain
	$(BIN)/python examples/covariates.py

training: $(READY)  ## training a model of your own: a plain loop, then Lightning
	$(BIN)/python examples/training.py
	$(BIN)/python examples/training_lightning.py

many-series: $(READY)  ## forecasts of 2000 series from Parquet files, by two workers
	$(BIN)/python examples/many_series.py

serve: $(READY)  ## the page: steer moving digits and watch the uncertainty, or forecast a table
	$(BIN)/spgru serve

test: $(READY)  ## run the tests (brute-force ones at reduced size)
	$(BIN)/python -m pytest -q

test-gpu: $(READY)  ## run the tests of kernels on this machine's GPU
	$(BIN)/python -m pytest -q -n 0 tests/recurrent tests/nn/test_replay.py tests/nn/test_training_replay.py tests/nn/test_level_kernel.py tests/nn/test_new_layers_gpu.py tests/models/test_whole_pass.py tests/functional/test_kernels.py tests/training/test_graph_update.py

check: $(READY)  ## formatting, lint, types, one-way imports, the documentation site
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory docs

docs: $(READY)  ## build the documentation site, warnings as errors; in outputs/docs/
	$(BIN)/sphinx-build -q -W --keep-going -b html -d outputs/doctrees docs outputs/docs
	@echo outputs/docs/index.html

pictures: $(READY)  ## draw the pictures of README and site again, from small runs and results
	$(BIN)/python tools/docs_pictures.py

wheel: $(READY)  ## build the wheel, and try it from an empty folder; in dist/
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[release]'
	rm -rf dist build
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python tools/check_wheel.py

types: $(READY)  ## what users' type checkers see: pyright on the examples (fetches pyright first)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[release]'
	$(BIN)/pyright --pythonpath $(BIN)/python examples

bench: $(READY)  ## check, then time against torch.nn, sampling and peers; in outputs/bench/
	$(BIN)/spgru bench

accuracy: $(READY)  ## how exact the formulas are; results in accuracy/results/
	$(BIN)/python accuracy/run.py

clean:  ## remove the environment and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache outputs
