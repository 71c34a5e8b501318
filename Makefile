# The same commands for people and for CI. Each creates .venv when it is missing.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test lint types unit shapes test-slow test-distributed test-clients test-ray test-browser test-mjx test-gpu bench format clean

# Runs of an earlier demo are removed: each one measures this machine and these sources.
demo: $(STAMP)
	$(BIN)/python examples/quickstart.py
	rm -rf runs/demo
	$(BIN)/skewflow demo --out runs/demo --page report.html

test: lint types unit shapes

# First what has a hash, then torch, triton and this checkout, which have none.
$(STAMP): pyproject.toml constraints.txt requirements.lock
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-build-isolation -c constraints.txt -e ".[lab,dev]"
	touch $(STAMP)

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

# Tests that run with every annotated shape checked. A test opts out by the marker `bad_input` or,
# since the checker makes long enumerations five times slower, `many_calls`.
SHAPED := tests/geometry tests/tournaments tests/flows tests/samplers/test_cost.py \
  tests/kernels/test_reference.py tests/kernels/test_permutation.py

# One process on each core, with whole files: their fixtures are made once. The files of a folder
# follow each other, so that a loop of numba is compiled once, and no long file comes last.
PYTEST := $(BIN)/python -m pytest
IN_ORDER := -n auto --dist loadfile --no-loadscope-reorder

# Else each of the hundred processes that the tests start would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

unit: $(STAMP)
	$(PYTEST) $(IN_ORDER) --durations=10 $(addprefix --ignore=,$(SHAPED))

shapes: $(STAMP)
	$(PYTEST) --jaxtyping-packages=skewflow,beartype.beartype $(IN_ORDER) $(SHAPED)

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow
	$(BIN)/python -m pytest -m slow tests/processes

# Sharded weights on two processes of this machine.
test-distributed: $(STAMP)
	$(BIN)/python -m pytest --durations=5 tests/processes

# The optimisers under the real PyTorch Lightning and Hugging Face's Accelerate and Trainer.
test-clients: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[clients]"
	$(BIN)/python -m pytest tests/clients

# Evolution strategies on a real Ray of two processes.
test-ray: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[ray]"
	$(BIN)/python -m pytest -rs tests/cluster

# The report in a real browser: the chromium that is installed, or else Playwright's own.
test-browser: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt playwright
	command -v chromium || $(BIN)/python -m playwright install --with-deps chromium
	$(BIN)/python -m pytest -rs tests/lab/report/test_report.py

# The control tasks in JAX against their CPU environments, on the CPU.
test-mjx: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[rl-gpu]"
	$(BIN)/python -m pytest tests/mjx

# On a machine with a CUDA device and torch, Triton and pytest at hand; no .venv is made.
test-gpu:
	PYTHONPATH=src:tests $(PYTHON) -m pytest tests/kernels tests/optim

bench: $(STAMP)
	$(BIN)/skewflow bench edge-completion --save
	$(BIN)/skewflow bench recurrence --save
	$(BIN)/skewflow bench processes --save

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache
