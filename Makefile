# The commands of the README. `make serve` and `make test` do everything from a clean clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: build
# Builds the native engine in place (kernels/_native*.so) with the environment's own CMake packages.
build:
	cmake -S kernels -B build -G Ninja -DPython_EXECUTABLE=$(abspath $(BIN)/python) -DCMAKE_LIBRARY_OUTPUT_DIRECTORY=$(CURDIR)/kernels
	cmake --build build
