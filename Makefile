# Two commands are all one needs: `make demo` and `make test`. Each sets up .venv by itself on first use.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

BIOME := npx --yes @biomejs/biome@2.6.6

.PHONY: demo test bench lint lint-page browser clean

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
	@$(MAKE) --no-print-directory lint-page

# The page's files one by one, and as the one program that they are: only there a name that nobody declares shows.
lint-page: .venv/.dev
	@if command -v npx >/dev/null; then \
	  $(BIOME) ci --error-on-warnings src/fedgram/report/assets && \
	  $(BIN)/python -c 'from fedgram.report.page import script; print(script())' > page.js && \
	  { $(BIOME) lint --error-on-warnings page.js; found=$$?; rm -f page.js; exit $$found; }; \
	else echo "npx (of npm) is missing: the page's JavaScript and style are not linted"; fi

# The report page is tested in a real browser. Where one is missing it is installed if that is possible; otherwise
# the tests that need it say so and are skipped.
browser:
	@if ! command -v chromedriver >/dev/null && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null; \
	fi

.venv/.python:
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.demo: .venv/.python pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e '.[vision,plot]'
	@touch $@

.venv/.dev: .venv/.python pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
