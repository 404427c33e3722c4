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

.PHONY: runtime
runtime: packages-runtime ## Build the pinned containerd, its shim, runc and the CNI plugins into .local
	@$(TOOL) cni runc containerd

.PHONY: images
images: packages-images ## Build the pause, demo and test images into .local/images
	@$(ROOT)/tools/images.sh

# What a fresh Debian 12 may lack.
PACKAGES_COMMON = "gcc:the C compiler" "libc6-dev:for the C compiler"

.PHONY: packages-runtime
packages-runtime:
	@$(ROOT)/tools/debian.sh $(PACKAGES_COMMON) "libseccomp-dev:to build runc" "pkg-config:to build runc" \
		"iptables:host ports and masquerading of pods" "iproute2:bridges" "ca-certificates:to download modules"

.PHONY: packages-images
packages-images:
	@$(ROOT)/tools/debian.sh $(PACKAGES_COMMON) "busybox-static:for a test image"
