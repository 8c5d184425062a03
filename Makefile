# The commands of the README. `make serve` and `make test` do everything from a clean clone. A second run
# builds nothing, and the service is there in 12 to 20 seconds on two quiet cores.
#
#   make serve [PORT=8000] [MODEL=folder] [ENCODER=folder] [CONFIG=file]    make check [ARGS=tests/engine]    make test    make test-faults
#   make conformance    make cluster    make sanitize    make bench    make lint    make page    make pictures
#   make wheel    make wheel-test    make image    make release    make clean

PYTHON ?= python3
PORT ?= 8000
CONFIG ?= ray_configs/local.yaml
EMBEDDED_MODEL := models/smollm2-135m-instruct
MODEL ?= $(EMBEDDED_MODEL)
# What makes vectors beside it; ENCODER= leaves it out.
EMBEDDED_ENCODER := models/all-minilm-l6-v2
ENCODER ?= $(EMBEDDED_ENCODER)
JOBS ?= $(shell nproc)
THREADS ?= $(shell nproc)

VENV := .venv
WEB := app/interface/web
BIN := $(VENV)/bin
BUILD_ENV := $(VENV)/.build
SERVE_ENV := $(VENV)/.serve
CHECK_ENV := $(VENV)/.check
TEST_ENV := $(VENV)/.test
WHEEL_ENV := $(VENV)/.wheel
IMAGE_ENV := $(VENV)/.image
LOCK_ENV := $(VENV)/.lock
# The packages come in one pass: with a goal that needs those of the tests, the other goals wait for that pass too.
ENV := $(if $(filter test test-faults conformance cluster sanitize lint pictures,$(MAKECMDGOALS)),$(TEST_ENV),$(SERVE_ENV))
# Python compiles what it imports, a small part of all that comes.
PIP_INSTALL = $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check
# Others' packages, from requirements/*.lock; pip refuses a file with another hash. It installs no folder that way: ours comes
# by a second command, which looks for no others' packages but for those of the extra `parity`: torch has no hash there.
install_locked = $(PIP_INSTALL) --require-hashes --no-deps $(patsubst %,--requirement requirements/%.lock,$(1))
# The installed package is this folder's path alone: the import hook that comes with it would win over PYTHONPATH, so that
# a second working tree with the same environment would import the first one's code. The folder of redoubt-verify, which
# needs no installation of its own here, is the second path.
install_with = $(call install_locked,$(1)) && $(PIP_INSTALL) --no-build-isolation --editable $(or $(2),. --no-deps) && \
  sed -i -e '/^import /d' -e '$$a $(CURDIR)/verify' $(VENV)/lib/python3.*/site-packages/_editable_skbc_redoubt.pth
COMMA := ,
# What takes long says so when it begins, and only then: $(call step,number in `make serve`,what and how long). The number
# is for `make serve` alone, since other goals have other steps.
step = $(eval HAS_WORKED := yes)echo "$(if $(filter serve,$(MAKECMDGOALS)),[$(1)/5] )$(2)"
say_and_fail = echo "$(1)" >&2; exit 1
NO_PACKAGES := pip could not install Python's packages: its reasons are above. Is the network there, or the package index that \
  'pip config list' names? The next make goes on from here.
NO_PAGES := npm could not fetch what the web pages are built with: its reasons are above. Is the network there, or the registry \
  that 'npm config get registry' names? The next make goes on from here.
NO_BUILD := The engine could not be built: the reasons are above. It needs a C++20 compiler, such as g++ 11 or newer.

# Where it is set, each of a service's processes compiles all that it imports anew.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPATH := $(CURDIR):$(CURDIR)/verify
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Every target is one command or a short chain: keep the shell's errors, and files of a failed recipe away.
SHELL := /bin/sh
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

.PHONY: help serve check test test-faults conformance cluster sanitize lint bench build page model test-tools kubectl docs lock clean
.PHONY: pictures wheel wheel-test image image-check image-test image-lock release release-check

help:
	@sed -n '1,6s/^# \{0,1\}//p' Makefile

# Starts the service and prints its address when it answers. Ctrl-C stops it.
serve: $(ENV) build $(if $(filter $(EMBEDDED_MODEL) $(EMBEDDED_ENCODER),$(MODEL) $(ENCODER)),model)
	@$(if $(ATTEST),tools/system_packages haproxy=haproxy)
	@$(if $(HAS_WORKED),$(call step,5,Starting the service (half a minute to a minute)))
	@$(if $(filter soft,$(ATTEST)),REDOUBT_ALLOW_SOFT_EVIDENCE=1) exec $(BIN)/python -m app.cli serve --config $(CONFIG) \
	  --port $(PORT) --model $(MODEL) $(addprefix --model ,$(ENCODER)) $(if $(ATTEST),--attest $(ATTEST))

# The fast tests, with pytest and little else beside what serving needs; a module that needs more is skipped, and says what.
# ARGS go to pytest: make check ARGS="tests/engine -k fair"
check: $(CHECK_ENV) build
	@$(BIN)/python -m pytest -m "not service and not browser and not parity" $(ARGS)

# ARGS go to pytest: make test ARGS="tests/quant -k gguf"
test: $(TEST_ENV) build model test-tools kubectl
	@tools/node npm --prefix $(WEB) run --silent test
	@REDOUBT_TEST_ALL=1 $(BIN)/python -m tests.run $(ARGS)

# What takes a Ray, a cluster, a database or a whole service away under load: five minutes.
test-faults: $(TEST_ENV) build model test-tools kubectl
	@REDOUBT_TEST_ALL=1 $(BIN)/python -m tests.run --faults

# Clients that others wrote, in environments of their own: make conformance ARGS="openai litellm". Without ARGS also the
# whole grids of which `make test` tries fewer cases (tests/sizes.py), the keys of models' configurations, real templates
# and tokenizers, and the chat page in Firefox.
conformance: $(TEST_ENV) build model $(if $(ARGS),,test-tools)
	@$(BIN)/python -m tests.conformance.run $(ARGS)
	$(if $(ARGS),,@REDOUBT_TEST_ALL=1 REDOUBT_TEST_FULL=1 $(BIN)/python -m pytest \
	  $$(grep -rlE --include='test_*.py' '^from (tests\.sizes import|tests import sizes|hypothesis import)|engine_model' tests) tests/app/capacity \
	  tests/families tests/families/long_flags.py)
	$(if $(ARGS),,@$(BIN)/python -m tests.conformance.chat_templates)
	$(if $(ARGS),,@$(BIN)/python -m tests.conformance.tokenizers)
	$(if $(ARGS),,@tools/system_packages firefox-esr=firefox-esr)
	$(if $(ARGS),,@$(BIN)/python -m tests.firefox)

# A cluster of pods in network namespaces, as root: scaled, killed, cut off, changed while it runs; and a confidential one.
# Takes a quarter of an hour.
cluster: $(TEST_ENV) build model test-tools
	@$(BIN)/python -m pytest -s tests/cloud/long_cluster.py tests/cloud/long_confidential.py $(ARGS)

# The native code under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer, in builds of its own: a line a
# part. Takes many minutes, so CI does not run it: make sanitize ARGS="threads files"
sanitize: $(TEST_ENV) build
	@$(BIN)/python -m tests.sanitize.run $(ARGS)

# make lint ARGS=path: ruff and mypy, of that path alone.
lint: $(TEST_ENV) $(WEB)/node_modules/.installed
ifdef ARGS
	@$(BIN)/ruff check $(ARGS)
	@$(BIN)/ruff format --check $(ARGS)
	@$(BIN)/mypy $(filter %.py,$(shell find $(ARGS) -name '*.py'))
else
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@tools/node npm --prefix $(WEB) run --silent check
	@$(BIN)/clang-format --dry-run -Werror $$(find kernels -name '*.h' -o -name '*.cc')
endif

# ARGS go to `redoubt bench engine`: make bench ARGS="--batch 1,8"
bench: $(ENV) build $(if $(filter $(EMBEDDED_MODEL),$(MODEL)),model)
	@$(BIN)/python -m app.cli bench engine $(MODEL) --threads $(THREADS) $(ARGS)

# The native engine, in place: kernels/_native*.so. Ninja rebuilds what changed. And the pages.
NATIVE_BUILT := build/native/.built
NATIVE_CHANGES = $(if $(wildcard $(NATIVE_BUILT)),$(shell find kernels -newer $(NATIVE_BUILT) \( -name '*.h' -o -name '*.cc' \
  -o -name CMakeLists.txt \) -print -quit),all)
build: $(BUILD_ENV) page
	@mkdir -p build
	@$(if $(NATIVE_CHANGES),$(call step,3,Building the engine with $(JOBS) jobs (two to three minutes on 2 cores)))
	@cmake -S kernels -B build/native -G Ninja -DPython_EXECUTABLE=$(abspath $(BIN)/python) \
	  -DCMAKE_LIBRARY_OUTPUT_DIRECTORY=$(CURDIR)/kernels -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >build/cmake.log 2>&1 \
	  || { cat build/cmake.log >&2; $(call say_and_fail,$(NO_BUILD)); }
	@cmake --build build/native --parallel $(JOBS) -- --quiet || { $(call say_and_fail,$(NO_BUILD)); }
	@touch $(NATIVE_BUILT)

# The pages that a browser gets, from TypeScript into $(WEB)/dist.
page: $(WEB)/dist/.built

$(WEB)/dist/.built: $(shell find $(WEB)/src $(WEB)/public -type f) $(wildcard $(WEB)/*.html $(WEB)/*.mjs $(WEB)/*.json) $(WEB)/node_modules/.installed
	@$(call step,2,Building the web pages (a few seconds))
	@tools/node npm --prefix $(WEB) run --silent build -- --logLevel warn
	@touch $@

$(WEB)/node_modules/.installed: $(WEB)/package.json $(WEB)/package-lock.json $(WEB)/.npmrc | $(BUILD_ENV)
	@$(call step,2,Fetching what the web pages are built with (up to half a minute))
	@mkdir -p build
	@tools/node npm --prefix $(WEB) ci --loglevel error --no-audit --no-fund --no-progress >build/npm.log 2>&1 \
	  || { cat build/npm.log >&2; $(call say_and_fail,$(NO_PAGES)); }
	@touch $@

model: $(EMBEDDED_MODEL)/config.json

# Converted again when the layout or the converter changed.
$(EMBEDDED_MODEL)/config.json: kernels/contract/packed_matrix.h $(shell find quant -name '*.py') | $(ENV) build
	@$(call step,4,Making two small models to try things with (a few seconds and 176 MB to fetch))
	@$(BIN)/python -m quant.conversion.embedded_model $(dir $(EMBEDDED_MODEL))
	@touch $@

# One wheel for every Python that we support: $(WHEEL)/redoubt-*.whl, by this machine's compiler. It takes a Python 3.11 and
# a 3.12 or newer with their headers, which PYTHONS names where they are not on PATH.
WHEEL ?= build/dist
wheel: $(WHEEL_ENV) page
	@CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(BIN)/python -m tools.wheel $(WHEEL) --pythons "$(PYTHONS)" $(ARGS)

# Installs the wheel where nothing else of ours is, as root: clean roots of Debian, and other Pythons; a model by its name, an
# answer, Ctrl-C: make wheel-test ARGS="debian12 mistakes"
wheel-test: $(SERVE_ENV) model $(if $(wildcard $(WHEEL)/redoubt-*.whl),,wheel)
	@tools/system_packages mmdebstrap=mmdebstrap qemu-x86_64=qemu-user
	@$(BIN)/python -m tests.packages.run_wheel --wheel $(WHEEL) $(ARGS)

# All that a release has, in $(RELEASE): the wheel, the image, their bills of materials, and SHA256SUMS. `make release-check`
# makes it in two fresh clones of the last commit, and compares the bytes.
RELEASE ?= build/release
release release-check: $(WHEEL_ENV) $(IMAGE_ENV) page
	@tools/system_packages mmdebstrap=mmdebstrap umoci=umoci
	@CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(BIN)/python -m tools.release $(RELEASE) --pythons "$(PYTHONS)" $(if $(filter %-check,$@),--check) $(ARGS)

# An OCI image without Docker, from the locks of kuberay/image: $(IMAGE)/oci and its bill of materials. Debian's packages
# come from the mirror of this machine's apt, or from DEBIAN_MIRROR and DEBIAN_SECURITY_MIRROR.
IMAGE ?= build/image
image image-check: $(IMAGE_ENV) page
	@tools/system_packages mmdebstrap=mmdebstrap umoci=umoci
	@$(BIN)/python -m kuberay.image.build $(IMAGE) $(if $(filter image-check,$@),--check)

# Runs the image under runc, as root: make image-test ARGS="serve convert"
image-test: $(SERVE_ENV) model $(if $(wildcard $(IMAGE)/oci),,image)
	@tools/system_packages runc=runc umoci=umoci ip=iproute2
	@$(BIN)/python -m tests.cloud.run_image --image $(IMAGE)/oci $(ARGS)

# Writes the image's locks anew: Debian's newest packages, and Python's as requirements/*.lock have them.
IMAGE_PYTHON ?= python3.13
image-lock: $(BUILD_ENV)
	@$(BIN)/python -m kuberay.image.lock --python $(IMAGE_PYTHON)

# Environments. A linked .venv (a second working tree's, say) is its owner's to keep; it is used as it is.
ifeq ($(shell test -L $(VENV) && echo linked),)
$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "Redoubt needs Python 3.11 or newer: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Redoubt needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + ": make PYTHON=/path/to/python3 ...")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || tools/system_packages venv=python3-venv
	@$(call step,1,Making the Python environment $(VENV)$(COMMA) and the tools to build with (up to a minute))
	@$(PYTHON) -m venv $(VENV) || { $(call say_and_fail,$(PYTHON) could not make $(VENV): its reasons are above.); }

$(BUILD_ENV): pyproject.toml $(wildcard requirements/*.lock) | $(BIN)/python
	@tools/system_packages g++=g++
	@$(BIN)/python -c 'import sysconfig; open(sysconfig.get_paths()["include"] + "/Python.h").close()' 2>/dev/null \
	  || tools/system_packages Python.h=python3-dev
	@$(call install_locked,build) || { $(call say_and_fail,$(NO_PACKAGES)); }
	@touch $@

$(SERVE_ENV): $(BUILD_ENV)
	@$(call step,1,Installing what serving needs into $(VENV) (1 to 4 minutes))
	@$(call install_with,serve) || { $(call say_and_fail,$(NO_PACKAGES)); }
	@touch $@

$(CHECK_ENV): $(BUILD_ENV)
	@$(call step,1,Installing what serving and pytest need into $(VENV) (1 to 4 minutes))
	@$(call install_with,serve check) || { $(call say_and_fail,$(NO_PACKAGES)); }
	@touch $(SERVE_ENV) $@

$(TEST_ENV): $(BUILD_ENV)
	@$(call step,1,Installing what serving and the tests need into $(VENV) (2 to 6 minutes))
	@$(call install_with,wheel serve postgres traces verify image check test,'.[parity]') || { $(call say_and_fail,$(NO_PACKAGES)); }
	@touch $(WHEEL_ENV) $(SERVE_ENV) $(IMAGE_ENV) $(CHECK_ENV) $@

$(WHEEL_ENV): $(BUILD_ENV)
	@$(call install_locked,wheel) || { $(call say_and_fail,$(NO_PACKAGES)); }
	@touch $@

$(IMAGE_ENV): $(BUILD_ENV)
	@$(call install_with,serve image)
	@touch $(SERVE_ENV) $@

$(LOCK_ENV): $(BUILD_ENV)
	@$(call install_locked,lock)
	@touch $@
else
.PHONY: $(BUILD_ENV) $(WHEEL_ENV) $(SERVE_ENV) $(CHECK_ENV) $(TEST_ENV) $(IMAGE_ENV) $(LOCK_ENV)
$(BUILD_ENV) $(WHEEL_ENV) $(SERVE_ENV) $(CHECK_ENV) $(TEST_ENV) $(IMAGE_ENV) $(LOCK_ENV): ;
endif

# What the tests drive: a browser, HAProxy with TLS, Postgres, networks of pods, and Prometheus' tool for alert rules. Not beside the compiler's installation: apt-get runs once at a time.
test-tools: | $(BUILD_ENV)
	@tools/system_packages chromium-headless-shell=chromium-headless-shell haproxy=haproxy ip=iproute2 unshare=util-linux hostname=hostname \
	  pg_ctlcluster=postgresql promtool=prometheus

# What the tests of the manifests render them with: kubectl, in build/.
kubectl: | $(ENV)
	@$(BIN)/python -m tests.cloud.manifests.kubectl

# Writes docs/configuration.md's tables from app/settings; a test holds them equal.
docs: $(SERVE_ENV)
	$(BIN)/python -m tools.configuration_table

# The pictures of docs/images, of a service with the embedded model: run it after the pages changed.
pictures: $(TEST_ENV) build model test-tools
	@$(BIN)/python -m tests.pictures

# Resolves pyproject.toml anew for every Python that we support and writes requirements/*.lock; UPGRADE=1 looks for newer
# versions. What pip's configuration says of an index is not uv's: UV_DEFAULT_INDEX names another than the public one.
lock: $(LOCK_ENV)
	@$(BIN)/python tools/locks.py $(if $(UPGRADE),--upgrade)

clean:
	rm -rf build $(WEB)/dist $(WEB)/node_modules kernels/_native*.so models/smollm2-135m-instruct models/*.gguf
	test -L $(VENV) || rm -rf $(VENV)
