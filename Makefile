# Two commands are all one needs: `make demo` and `make test`. Each sets up .venv by itself on first use.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

BIOME := npx --yes @biomejs/biome@2.6.6

PYTEST = $(BIN)/python -m pytest -n auto

.PHONY: demo test test-quick campaign test-versions test-lowest test-newest bench lint lint-page browser clean

# Real photographs, a comparison table, a report page, pictures. What is finished is not repeated.
demo: .venv/.demo
	$(BIN)/fedgram compare examples/demo.toml --out report --resume
	$(BIN)/fedgram report report --out report --force

# Everything but what is marked slow.
test: .venv/.dev browser
	$(PYTEST)

# For work in progress: each test with the first of its cases, and nothing that starts Flower, a browser, a large network
# or many processes.
LONG := cli/test_amend.py cli/test_earlier_outputs.py cli/test_personalize.py features/backbones data/published \
  data/test_shift.py engines/test_threads.py exchange/test_consortium.py exchange/test_kills_between_writes.py \
  experiments/test_lock.py experiments/test_resume.py features/test_extract.py layerwise/test_layerwise.py \
  methods/gradient/test_any_network.py report/test_plots.py studies/test_media.py studies/test_streams.py test_imports.py \
  test_results_queue.py
QUICKLY := -m 'not flower and not browser and not slow' tests src $(LONG:%=--ignore=tests/%)
test-quick: .venv/.dev
	FEDGRAM_TESTS=quick $(PYTEST) $(QUICKLY)

# What `make test` tries a tenth of (property tests, fuzzing, kills), at full size, and what is slow.
campaign: .venv/.dev
	FEDGRAM_TESTS=campaign $(PYTEST) -m 'hypothesis or campaign or slow'

# Every Python from 3.11 on that runs here, each in an environment of its own, with the versions of CI.
test-versions:
	@for minor in 11 12 13 14 15 16; do \
	  python3.$$minor --version >/dev/null 2>&1 || { echo "python3.$$minor: not here"; continue; }; \
	  echo "python3.$$minor: $$(python3.$$minor --version)"; \
	  python3.$$minor -m venv .venv-3.$$minor && \
	  .venv-3.$$minor/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt -e '.[dev]' && \
	  .venv-3.$$minor/bin/python -m pytest -n auto || exit 1; \
	done

# The lowest versions of the core's dependencies that pyproject.toml allows, without extras: what needs one is skipped.
# Old packages may use what newer ones call deprecated; that is no error of ours.
CORE := $(wildcard tests/core tests/moments tests/heads tests/protocol tests/methods/analytic)
LOWEST := .venv-lowest/bin/python
test-lowest:
	$(PYTHON) -m venv .venv-lowest
	$(LOWEST) -c "import tomllib; \
	  needed = tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies']; \
	  print(*(line.replace('>=', '==') for line in needed), sep='\n')" > .venv-lowest/lowest.txt
	$(LOWEST) -m pip --disable-pip-version-check --quiet install -c .venv-lowest/lowest.txt -e . hypothesis pytest pytest-xdist safetensors
	FEDGRAM_TESTS=core $(LOWEST) -m pytest -n auto -W default::DeprecationWarning $(CORE)

# What a user gets today: the newest versions of everything, without the pins of CI. The core and each extra are tried
# alone, then the quick tests run with all of them. Flower is left out there, because it holds typer and rich back; and a
# plain torch would bring gigabytes for graphics cards.
NEWEST := .venv-newest/bin/python
test-newest:
	$(PYTHON) tools/try_extras.py
	$(PYTHON) -m venv --clear .venv-newest
	$(NEWEST) -m pip --disable-pip-version-check --quiet install torch==2.13.0 \
	  -e '.[exchange,hub,nets,onnx,plot,sklearn,tables,text,vision,vision-lite]' \
	  hypothesis 'pytest!=9.2.0' pytest-xdist safetensors selenium
	FEDGRAM_TESTS=quick $(NEWEST) -m pytest -n auto $(QUICKLY) \
	  --ignore=tests/engines/flower --ignore=src/fedgram/engines/flower

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
	  $(BIN)/python -c 'from fedgram.report.report_page import script; print(script())' > page.js && \
	  { $(BIOME) lint --error-on-warnings page.js; found=$$?; rm -f page.js; exit $$found; }; \
	else echo "npx (of npm) is missing: the page's JavaScript and style are not linted"; fi

# The report page is tested in a real browser. Where one is missing it is installed if that is possible; otherwise
# the tests that need it say so and are skipped.
browser:
	@if ! command -v chromedriver >/dev/null && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null; \
	fi

# The tables of docs/results, from the records in docs/results/data.
.PHONY: results
results: .venv/.dev
	$(BIN)/python tools/results.py

# The experiments of tools/queue.toml at the lowest priority; goes on where it stopped, Ctrl-C ends it.
.PHONY: results-queue
results-queue: .venv/.dev
	$(BIN)/python tools/results_queue.py run

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
	rm -rf .venv .venv-* .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
