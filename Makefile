# Two commands are all one needs: `make demo` and `make test`. Each sets up .venv by itself on first use.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test bench lint browser clean

# Real photographs, a comparison table, a report page, pictures. What is finished is not repeated.
demo: .venv/.demo
	$(BIN)/fedgram compare examples/demo.toml --out report --resume
	$(BIN)/fedgram report report --out report

test: .venv/.dev browser
	$(BIN)/python -m pytest -n auto

bench: .venv/.dev
	$(BIN)/python -m benchmarks

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The report page is tested in a real browser. Where one is missing it is installed if that is possible; otherwise
# the tests that need it say so and are skipped.
browser:
	@if ! command -v chromedriver >/dev/null && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null; \
	fi

# The documentation as pages in build/site, links checked; read it by opening build/site/index.html.
.PHONY: docs
docs: .venv/.docs
	$(BIN)/python tools/build_docs.py

.venv/.python:
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.demo: .venv/.python pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e '.[vision,plot]'
	@touch $@

.venv/.dev: .venv/.python pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

.venv/.docs: .venv/.python pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e '.[docs]'
	@touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
