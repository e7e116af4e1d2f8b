# foretell: what people type. Every target makes what it needs; `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON3 ?= python3
STACK ?= torch-2.15
OLDEST := torch-2.6
CPU_ONLY := torch-2.13-cpu
JOBS ?= 2
GPU ?= rtx-3060

ENVIRONMENT = build/$(STACK)
PYTHON = $(ENVIRONMENT)/bin/python
VIRTUAL := src/foretell/virtual
LIBRARIES := $(VIRTUAL)/libcuda.so.1 $(VIRTUAL)/libnvidia-ml.so.1
NATIVE_SOURCES := $(wildcard $(VIRTUAL)/native/*)
CODE := src tests examples benchmarks scripts/environment scripts/browser setup.py

.PHONY: help demo environment native browser page test check lint types format test-matrix test-zoo bench coverage accuracy accuracy-cpu engines test-cpu native-test wheel clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16
	@echo "STACK=$(STACK) chooses the torch (scripts/stacks), JOBS=$(JOBS) how many tests run at once, GPU=$(GPU) the card of the demo"

demo: environment native ## an environment, foretell and the CUDA build of torch in it, and ResNet-50 on a GPU you don't have
	@echo; echo '$$ foretell run --gpu $(GPU) examples/train_resnet.py --batch-size 64 --amp'
	$(ENVIRONMENT)/bin/foretell run --gpu $(GPU) examples/train_resnet.py --batch-size 64 --amp
	@echo; echo "foretell is installed here: $(ENVIRONMENT)/bin/foretell run --gpu NAME YOUR_SCRIPT.py ..."

environment: ## the Python environment of $(STACK): shared per machine, with this checkout's foretell on top
	@$(PYTHON3) scripts/environment $(STACK) $(ENVIRONMENT) > /dev/null

native: $(LIBRARIES) ## the virtual GPU, in place

# One recipe for both libraries; `&:` needs make 4.3, so the second depends on the first.
$(VIRTUAL)/libcuda.so.1: setup.py $(NATIVE_SOURCES) | environment
	$(PYTHON) setup.py --quiet build_native --inplace
$(VIRTUAL)/libnvidia-ml.so.1: $(VIRTUAL)/libcuda.so.1
	@touch $@

test: environment native browser ## the tests: all of them on $(STACK), and those of the CPU engine on a torch without CUDA
	$(PYTHON) -m pytest -n $(JOBS) --dist loadgroup tests
	$(MAKE) test-cpu

browser: environment ## a browser for the tests of the HTML report; without one they are skipped
	@$(PYTHON3) scripts/browser $(ENVIRONMENT)

page: ## builds src/foretell/report/page.html from web/report; needs node 20 and npm
	cd web/report && npm ci --no-audit --no-fund && npm run build

test-cpu: ## the tests of the CPU engine, on a torch without CUDA
	$(MAKE) environment native STACK=$(CPU_ONLY)
	build/$(CPU_ONLY)/bin/python -m pytest -n $(JOBS) --dist loadgroup tests/test_cpu_engine.py tests/test_operators.py tests/test_zoo.py

check: lint types test ## lint, types and tests

lint: environment
	$(PYTHON) -m ruff check $(CODE)

types: environment
	$(PYTHON) -m mypy

format: environment ## put imports in order and fix what ruff can fix
	$(PYTHON) -m ruff check --fix $(CODE)

test-zoo: environment native ## the zoo and the examples alone
	$(PYTHON) -m pytest -n $(JOBS) --dist loadgroup tests/test_zoo.py tests/test_examples.py

test-matrix: ## the zoo on the oldest and on the newest torch
	$(MAKE) test-zoo STACK=$(OLDEST)
	$(MAKE) test-zoo STACK=torch-2.15

bench: environment native ## time and host memory, as ratios
	$(PYTHON) benchmarks/bench.py

coverage: environment native ## two steps of a thousand models against the CPU; all of them write docs/coverage.md
	$(PYTHON) -m benchmarks.coverage $(ARGS)

GROUND_TRUTH ?= ../shared/ground_truth
accuracy: ## estimates against measured runs (GROUND_TRUTH), on the stack they were measured with: docs/accuracy.md
	$(MAKE) environment native STACK=$(OLDEST)
	build/$(OLDEST)/bin/foretell evaluate $(GROUND_TRUTH) --rows kept --sample 120 --markdown docs/accuracy.md $(ARGS)

accuracy-cpu: ## the same with the CPU engine: docs/accuracy-cpu.md
	$(MAKE) environment native STACK=$(OLDEST)
	build/$(OLDEST)/bin/foretell evaluate $(GROUND_TRUTH) --engine cpu --rows kept --sample 120 \
	  --sets transformer,cnn_rtx,transformer_a100,mlp_a100,cnn_a100 \
	  --markdown docs/accuracy-cpu.md $(ARGS)

engines: environment native ## the CPU engine against the virtual GPU, on the zoo and the examples: docs/engines.md
	$(PYTHON) -m benchmarks.engines --markdown docs/engines.md $(ARGS)

native-test: environment ## the native tests, under AddressSanitizer or valgrind
	$(MAKE) -C tests/native

wheel: environment ## dist/foretell-*-py3-none-linux_x86_64.whl
	$(PYTHON3) -m pip wheel --no-deps --wheel-dir dist .

clean: ## what was built in this checkout (the shared stacks stay)
	rm -rf build dist src/*.egg-info $(LIBRARIES) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
