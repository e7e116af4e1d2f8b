# Every target creates what it needs; `make help` lists the targets.
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
NATIVE_SOURCES := $(wildcard $(VIRTUAL)/native/* $(VIRTUAL)/native/*/*)
CODE := src tests examples benchmarks scripts/environment scripts/browser scripts/columns setup.py

.PHONY: help demo environment native browser ray ci-tools train-tools emit-check page test check lint types format test-matrix test-zoo ranks bench coverage real-scripts accuracy accuracy-cpu calibration bounds time-calibration time-accuracy sharing-calibration gpumemnet instant engines test-cpu native-test wheel clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16
	@echo "STACK=$(STACK) selects the torch (scripts/stacks), JOBS=$(JOBS) the number of parallel tests, GPU=$(GPU) the GPU of the demo"

demo: environment native ## create an environment with foretell and the CUDA build of torch, and estimate ResNet-50
	@echo; echo '$$ foretell run --gpu $(GPU) examples/train_resnet.py --batch-size 64 --amp'
	$(ENVIRONMENT)/bin/foretell run --gpu $(GPU) examples/train_resnet.py --batch-size 64 --amp
	@echo; echo "foretell is installed here: $(ENVIRONMENT)/bin/foretell run --gpu NAME YOUR_SCRIPT.py ..."

environment: ## create the Python environment of $(STACK): shared per machine, with this checkout's foretell on top
	@$(PYTHON3) scripts/environment $(STACK) $(ENVIRONMENT) > /dev/null

native: $(LIBRARIES) ## build the virtual GPU in place

# One recipe for both libraries; `&:` needs make 4.3, so the second depends on the first.
$(VIRTUAL)/libcuda.so.1: setup.py $(NATIVE_SOURCES) | environment
	$(PYTHON) setup.py --quiet build_native --inplace
$(VIRTUAL)/libnvidia-ml.so.1: $(VIRTUAL)/libcuda.so.1
	@touch $@

# Bytecode first: the processes of the tests see a read-only checkout, and would compile the same files again and again.
test: environment native browser ray ci-tools train-tools ## run all tests on $(STACK), and those of the CPU engine on a torch without CUDA
	@$(PYTHON) -m compileall -q src/foretell
	$(PYTHON) -m pytest -n $(JOBS) --dist loadgroup tests
	$(MAKE) test-cpu

browser: environment ## install a browser for the tests of the HTML report; without one they are skipped
	@$(PYTHON3) scripts/browser $(ENVIRONMENT)

ray: environment ## install Ray for the tests of `--workers ray`; without it they are skipped
	@$(PYTHON3) scripts/environment --add ray $(ENVIRONMENT)

ci-tools: environment ## install pre-commit and check-jsonschema for the tests of the action and the hook; without them they are skipped
	@$(PYTHON3) scripts/environment --add ci $(ENVIRONMENT)

train-tools: environment ## install LightGBM and pyarrow for the tests of `foretell train`; without them they are skipped
	@$(PYTHON3) scripts/environment --add train $(ENVIRONMENT)

emit-check: environment native ray ## check what `--emit` prints with the tools it is for, in an environment of their own
	@$(PYTHON3) scripts/environment emit build/emit > /dev/null
	$(PYTHON) -m pytest -n 0 tests/test_emit.py tests/test_emit_parsers.py
	build/emit/bin/python -m pytest -n 0 tests/test_emit_parsers.py

page: ## build src/foretell/report/page.html from web/report; needs node 20 and npm
	cd web/report && npm ci --no-audit --no-fund && npm run build

test-cpu: ## run the tests of the CPU engine on a torch without CUDA
	$(MAKE) environment native STACK=$(CPU_ONLY)
	@build/$(CPU_ONLY)/bin/python -m compileall -q src/foretell
	build/$(CPU_ONLY)/bin/python -m pytest -n $(JOBS) --dist loadgroup tests/test_cpu_engine.py tests/test_operators.py tests/test_zoo.py

check: lint types test ## run lint, types and tests

lint: environment
	$(PYTHON) -m ruff check $(CODE)
	$(PYTHON3) scripts/columns

types: environment
	$(PYTHON) -m mypy

format: environment ## sort imports and fix what ruff can fix
	$(PYTHON) -m ruff check --fix $(CODE)

test-zoo: environment native ## run only the zoo and the examples
	$(PYTHON) -m pytest -n $(JOBS) --dist loadgroup tests/test_zoo.py tests/test_examples.py

test-matrix: ## run the zoo on the oldest and on the newest supported torch
	$(MAKE) test-zoo STACK=$(OLDEST)
	$(MAKE) test-zoo STACK=torch-2.15

ranks: environment native ## compare some ranks with all, for every way to split a training and for the frameworks, and repeat each five times
	$(PYTHON) -m pytest -n $(JOBS) --dist loadgroup --every-job tests/test_some_ranks.py $(ARGS)

bench: environment native ## measure time and host memory, as ratios
	$(PYTHON) benchmarks/bench.py

coverage: environment native ## compare two steps of a thousand models with the CPU; a full run writes docs/coverage.md
	$(PYTHON) -m benchmarks.coverage $(ARGS)

real-scripts: native ## run training scripts people really run, and write docs/real-scripts.md (ARGS="--only mnist")
	@$(PYTHON3) scripts/environment $(STACK) build/real-scripts > /dev/null
	@$(PYTHON3) scripts/environment --install real-scripts build/real-scripts
	build/real-scripts/bin/python -m benchmarks.real_scripts $(ARGS)

GROUND_TRUTH ?= ../shared/ground_truth
MEASURED := transformer,cnn_rtx,mlp_plain_a100,mlp_a100,cnn_a100,transformer_a100,timm_a100,real_models_a100,published_jobs
SAMPLE ?= 115
accuracy: ## compare estimates with measured runs (GROUND_TRUTH), with the versions of the measurements: docs/accuracy.md
	$(MAKE) environment native STACK=$(OLDEST)
	build/$(OLDEST)/bin/foretell evaluate $(GROUND_TRUTH) --sets $(MEASURED) --sample $(SAMPLE) --memory-only \
	  --hold-out family --runs 5 --markdown docs/accuracy.md $(ARGS)

calibration: ## fit the constants of the intervals to measured runs (GROUND_TRUTH): src/foretell/rules/interval.toml
	$(MAKE) environment native STACK=$(OLDEST)
	$(MAKE) environment native STACK=torch-2.15
	build/$(OLDEST)/bin/foretell evaluate $(GROUND_TRUTH) --sets $(MEASURED) --sample $(SAMPLE) --memory-only \
	  --fit src/foretell/rules/interval.toml $(ARGS)
	build/torch-2.15/bin/foretell evaluate $(GROUND_TRUTH) --sets cnn_rtx,cnn_a100,real_models_a100 --sample 30 --memory-only \
	  --fit src/foretell/rules/interval.toml $(ARGS)

accuracy-cpu: ## do the same with the CPU engine: docs/accuracy-cpu.md
	$(MAKE) environment native STACK=$(OLDEST)
	build/$(OLDEST)/bin/foretell evaluate $(GROUND_TRUTH) --engine cpu --rows kept --sample 120 \
	  --sets transformer,cnn_rtx,transformer_a100,mlp_a100,cnn_a100 \
	  --markdown docs/accuracy-cpu.md $(ARGS)

time-calibration: environment native ## fit the constants of step times to measured ones (GROUND_TRUTH), judged by families
	$(PYTHON) -m benchmarks.time_calibration --ground-truth $(GROUND_TRUTH) --write $(ARGS)

time-accuracy: environment native ## compare step times and utilization with measured ones (GROUND_TRUTH): docs/time.md
	build/$(STACK)/bin/foretell evaluate $(GROUND_TRUTH) --sample 60 --markdown docs/time.md \
	  --sets time_timm_train_3090,time_timm_infer,time_transformer_fp32,mlp_a100,mlp_plain_a100,cnn_a100 $(ARGS)

bounds: environment native ## compare the largest batch sizes with those that ran and failed on a real card: docs/max-batch.md
	$(PYTHON) -m benchmarks.bounds --ground-truth $(GROUND_TRUTH) --markdown docs/max-batch.md $(ARGS)

sharing-calibration: environment native ## fit the slowdown of jobs that share a card on measured pairs: src/foretell/rules/sharing.py
	$(PYTHON) -m benchmarks.sharing --ground-truth $(GROUND_TRUTH) $(ARGS)

gpumemnet: environment native train-tools ## cross-validate GPUMemNet's networks on measured runs (GROUND_TRUTH), beside what its authors published: docs/learned.md
	$(PYTHON) -m benchmarks.gpumemnet --ground-truth $(GROUND_TRUTH) --markdown docs/learned.md $(ARGS)

instant: ## judge instant estimates on measured runs (GROUND_TRUTH), with LABELS also those of labels alone: docs/learned.md
	$(MAKE) environment native train-tools STACK=$(OLDEST)
	build/$(OLDEST)/bin/python -m benchmarks.instant --ground-truth $(GROUND_TRUTH) $(if $(LABELS),--labels $(LABELS)) \
	  --markdown docs/learned.md $(ARGS)

engines: environment native ## compare the CPU engine with the virtual GPU on the zoo and the examples: docs/engines.md
	$(PYTHON) -m benchmarks.engines --markdown docs/engines.md $(ARGS)

native-test: environment ## run the native tests under AddressSanitizer
	$(MAKE) -C tests/native

wheel: environment ## build dist/foretell-*-py3-none-linux_x86_64.whl
	$(PYTHON3) -m pip wheel --no-deps --wheel-dir dist .

clean: ## remove everything built in this checkout (shared environments stay)
	rm -rf build dist src/*.egg-info $(LIBRARIES) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
