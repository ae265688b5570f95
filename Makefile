# Two commands are all one needs: `make demo` and `make test`. Each sets up .venv by itself on first use.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test bench lint clean

demo: .venv/.demo
	$(BIN)/fedgram run --method afl --data digits --clients 50 --partition dirichlet:0.1
	$(BIN)/python examples/afl_claims.py

test: .venv/.dev
	$(BIN)/python -m pytest -n auto

bench: .venv/.dev
	$(BIN)/python -m benchmarks

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/.python:
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.demo: .venv/.python pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e .
	@touch $@

.venv/.dev: .venv/.python pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
