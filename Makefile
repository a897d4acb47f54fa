# make demo          install bertaccum, prepare the synthetic sample, train a classifier, evaluate it
# make test          check the code and the documentation, and run the fast tests
# make check         check the code and the documentation
# make pytest        run the fast tests
# make test-slow     run the tests that take minutes
# make fuzz          search for files that are read wrongly, with other inputs in every run
# make test-install  build the packages and try them in new environments
# make dist          build the wheel and the source distribution in dist/
# make format        format the code with ruff and apply its automatic fixes
# make docs          build the documentation site in build/docs
# make examples      run the programs in examples/ to the end
# make bench-peers   compare the speed with that of other programs
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What running needs, and what developing needs besides.
RUNS := $(VENV)/.runs
INSTALLED := $(VENV)/.installed
BERTACCUM := $(BIN)/bertaccum

.PHONY: install demo examples test check test-slow fuzz test-install dist lint types docs pytest bench-peers \
  format clean

install: $(INSTALLED)

$(RUNS): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "bertaccum needs Python 3.10 to 3.13; choose one with make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@echo "installing bertaccum in $(VENV): pip downloads 850 MB, and the installation takes 3.3 GB"
	$(BIN)/python -m pip install --constraint constraints.txt --editable .
	@touch $@

$(INSTALLED): $(RUNS)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(RUNS)
	$(BERTACCUM) prepare --source sample
	$(BERTACCUM) train --config configs/sample.yaml
	$(BERTACCUM) eval
	@echo; echo "Go on with, after . $(BIN)/activate:"
	@echo '  bertaccum predict "The food was great."              # classify a text'
	@echo "  bertaccum report                                     # a web page about the run"
	@echo "  bertaccum prepare --source csv --train-file my.csv   # your own texts"

examples: $(INSTALLED)
	$(BIN)/python examples/mnist_distributed.py --run all
	$(BIN)/python examples/housing_regression.py

# Each check uses one core, so two run at a time.
test: $(INSTALLED)
	$(MAKE) --no-print-directory --jobs 2 check pytest

check: lint types docs

test-slow: $(INSTALLED)
	$(BIN)/pytest -m slow --numprocesses 2 --dist worksteal

fuzz: $(INSTALLED)
	BERTACCUM_FUZZ=6000 $(BIN)/pytest -m slow --numprocesses 2 --dist worksteal tests/test_fuzz.py

# Installs TensorFlow in a new environment, which downloads 700 MB if pip has not cached it.
test-install: $(INSTALLED)
	$(BIN)/pytest -m install -rA --durations 5

# Builds the wheel from the source distribution, which proves that the source distribution is
# complete.
dist: $(INSTALLED)
	rm -rf build/lib dist
	$(BIN)/python -m build --outdir dist

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The second command finds calls and names in the benchmarks that no longer exist; their types are
# not checked otherwise.
NOT_CALLS := arg-type assignment misc operator call-overload union-attr return-value no-untyped-def \
  import-untyped
types: $(INSTALLED)
	$(BIN)/mypy
	MYPYPATH=benchmarks:benchmarks/peers $(BIN)/mypy --cache-dir .mypy_cache/benchmarks \
	  --no-warn-unused-ignores $(addprefix --disable-error-code=,$(NOT_CALLS)) benchmarks/*.py

# -W: a warning, such as a broken link, fails the build. Sphinx 9 needs Python 3.11.
docs: $(INSTALLED)
	$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || exit 0; \
	$(BIN)/sphinx-build -q -E -W --keep-going -b html docs build/docs

# With oneDNN, TensorFlow takes a tenth longer to make a graph, so only the slow tests use it.
pytest: $(INSTALLED)
	TF_ENABLE_ONEDNN_OPTS=0 $(BIN)/pytest --numprocesses 2 --dist worksteal

PEERS := build/peers/environments

bench-peers: $(INSTALLED) $(PEERS)/huggingface $(PEERS)/keras3
	$(BIN)/python benchmarks/peers.py tokenizing
	$(BIN)/python benchmarks/peers.py training --peers "Hugging Face" "Hugging Face, grouped" "Keras 3" \
	  tf-models-official
	$(BIN)/python benchmarks/peers.py prediction

$(PEERS)/%: benchmarks/peers/%.txt
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --requirement $< || { rm -rf $@; exit 1; }
	@touch $@

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
