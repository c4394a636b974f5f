# Every target sets up what it needs by itself, on a machine that has python3, git and make.

VENV := .venv
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready
ADAPTERS := $(patsubst %/pyproject.toml,%,$(wildcard adapters/*/pyproject.toml))
ADAPTERS_READY := $(VENV)/.ready-adapters

.PHONY: help demo test test-slow test-storm check format docs pages figures dist clean \
	bench-losses bench-augmentations bench-training bench-study bench-startup bench-scale bench-detectors bench-patch-memory bench-quick bench-false-alarms bench-contamination bench-drift bench-few-images bench-pu-auc bench-serving bench-ray

help:
	@echo "make demo     select an augmentation on a small inspection task made on the spot"
	@echo "make test     checks, documentation and tests"
	@echo "make test-storm SEED=0: random faults, from kills to names that are commands; about a quarter of an hour"
	@echo "make check    format, lint, types, architecture"
	@echo "make docs     the documentation, into site/"
	@echo "make dist     the wheel, into dist/"
	@echo "make bench-losses, bench-augmentations, bench-training, bench-study, bench-startup, bench-scale, bench-detectors, bench-patch-memory, bench-pu-auc, bench-serving, bench-ray: measurements"
	@echo "make bench-quick, bench-false-alarms, bench-contamination, bench-drift, bench-few-images TASKS=\"FOLDER ...\": measurements on labelled tasks"

# The marker is newer than the project files exactly where the environment is up to date.
$(READY): pyproject.toml
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet uv
	$(PYTHON) -m uv pip install --quiet --python $(PYTHON) --compile-bytecode --editable ".[demo,onnx,serve]" --group dev
	@touch $@

# Adapters bring other libraries along, which the demo does without.
$(ADAPTERS_READY): $(READY) $(ADAPTERS:%=%/pyproject.toml)
	for adapter in $(ADAPTERS); do \
		$(PYTHON) -m uv pip install --quiet --python $(PYTHON) --compile-bytecode --editable "$$adapter[test]" || exit 1; \
	done
	@touch $@

demo: $(READY)
	$(VENV)/bin/dsv demo

check: $(ADAPTERS_READY)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	for adapter in $(ADAPTERS); do $(VENV)/bin/mypy $$adapter/src || exit 1; done
	$(VENV)/bin/lint-imports --no-cache

format: $(READY)
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

docs: $(ADAPTERS_READY)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

# Tests start many processes: compiled once, our modules need not be compiled in each of them. Clusters of Ray that start
# at the same time keep each other waiting, so its tests run one after the other.
test: check docs
	$(PYTHON) -m compileall -q dsv_plugins adapters
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n 2 --dist loadfile --no-loadscope-reorder
	for adapter in $(ADAPTERS); do \
		case $$adapter in *-ray) workers=0;; *) workers=2;; esac; \
		OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n $$workers --dist loadfile $$adapter/tests || exit 1; \
	done

# Pytest ends with 5 where it finds no test: not every adapter has slow ones.
test-slow: $(ADAPTERS_READY)
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -m slow
	for adapter in $(ADAPTERS); do OMP_NUM_THREADS=1 $(PYTHON) -m pytest -m slow $$adapter/tests || [ $$? = 5 ] || exit 1; done

test-storm: $(READY)
	OMP_NUM_THREADS=1 STORM_SEED=$(or $(SEED),0) $(PYTHON) -m pytest -n 2 -m storm --timeout 3000 tests/storm tests/run

bench-losses bench-augmentations bench-training bench-study bench-startup bench-scale bench-detectors bench-patch-memory bench-pu-auc bench-serving: $(READY)
	$(PYTHON) tests/benchmarks/$(subst -,_,$@).py

# What a user gets, against what a user would take instead.
bench-quick: $(ADAPTERS_READY)
	$(VENV)/bin/dsv bench $(TASKS) --augmentations cutpaste --holdout 0.15 --seeds $(or $(SEEDS),0) --rivals patch-memory,anomalib-patchcore --out $(or $(OUT),bench-quick)

bench-false-alarms bench-contamination bench-drift bench-few-images: $(READY)
	$(PYTHON) tests/benchmarks/$(subst -,_,$@).py $(TASKS)

bench-ray: $(ADAPTERS_READY)
	$(PYTHON) adapters/dsv-ray/benchmarks/bench_ray.py

pages: $(READY)
	$(PYTHON) docs/generated/pages.py

figures: $(READY)
	$(PYTHON) docs/figures/augmentations.py
	$(PYTHON) docs/figures/more_augmentations.py

dist: $(READY)
	$(PYTHON) -m build --wheel --installer uv

clean:
	rm -rf $(VENV) site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
