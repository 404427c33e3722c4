# Podplane. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DEFAULT_GOAL := help

ROOT := $(CURDIR)
LOCAL := $(ROOT)/.local
BIN := $(LOCAL)/bin
export PATH := $(BIN):$(PATH)

# A directory without go.mod at its root: the modules are those that go.work names.
TOOL = $(ROOT)/tools/build.sh

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: proto
proto: tools-proto ## Lint the protos and generate Go, gRPC, gateway and OpenAPI code beside them
	@cd proto && buf lint && buf generate

.PHONY: tools-proto
tools-proto:
	@$(TOOL) buf proto
