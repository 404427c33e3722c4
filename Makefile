# Podplane. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DEFAULT_GOAL := help

ROOT := $(CURDIR)
LOCAL := $(ROOT)/.local
TOOL := $(ROOT)/tools/build.sh
DEBIAN := $(ROOT)/tools/debian.sh
export PATH := $(LOCAL)/bin:$(PATH)

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X github.com/podplane/podplane/internal/daemon.Version=$(VERSION)
SERVICES := $(notdir $(wildcard services/*))

# Everything but the race detector builds without cgo and with the same flags, so that build, lint and tools share one build cache.
GO := CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false" go
# go.work's modules by pattern; the module at test/ needs a runtime and the built programs. Virtual machines need the host for themselves.
UNIT = $(shell go list work | grep -v '^github.com/podplane/podplane/test')
E2E = $(shell go list ./test/... | grep -v -E '/test/(vm|chaos)$$')
UNIT_TIMEOUT ?= 15m
E2E_TIMEOUT ?= 25m
VM_TIMEOUT ?= 50m

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: up
up: build $(if $(CRI_ENDPOINT),,runtime images) ## Build what is needed and start Podplane, with a containerd of its own unless CRI_ENDPOINT names a runtime
	@exec bin/podplane up $(ARGS)

.PHONY: build
build: ## Build bin/podplane, the static binary of all services and the command line
	@$(GO) build -ldflags "$(LDFLAGS)" -o bin/podplane ./cmd/podplane

.PHONY: build-services
build-services: ## Build each service alone, without the workspace, into bin/services
	@for service in $(SERVICES); do \
		echo "building services/$$service alone"; \
		(cd services/$$service && GOWORK=off $(GO) build -ldflags "$(LDFLAGS)" -o $(ROOT)/bin/services/ ./cmd/...); \
	done

.PHONY: runtime
runtime: packages-runtime ## Build the pinned containerd, its shim, runc and the CNI plugins into .local
	@$(TOOL) cni runc containerd

.PHONY: images
images: packages-images ## Build the pause, demo and test images into .local/images
	@$(ROOT)/tools/images.sh

.PHONY: test
test: test-unit test-e2e test-vm ## Run all tests: unit with the race detector, integration, end-to-end against a real containerd (root), virtual machines

.PHONY: test-unit
test-unit: test-host ## Run the tests of all modules but test/
	@go test -race -timeout $(UNIT_TIMEOUT) $(UNIT)

.PHONY: test-e2e
test-e2e: test-host ## Run the end-to-end tests
	@go test -race -count 1 -timeout $(E2E_TIMEOUT) $(E2E)
	@go test -race -count 1 -timeout $(E2E_TIMEOUT) ./test/chaos

.PHONY: test-vm
test-vm: test-host packages-vm ## Run tests in virtual machines with cgroup v2, one of them with systemd
	@test/vm/image.sh
	@go test -count 1 -timeout $(VM_TIMEOUT) ./test/vm

.PHONY: test-compose
test-compose: packages-test runtime images ## Run the tests of deploy/ with a real Docker and Compose of their own (root; the first run takes some minutes more)
	@test/compose/run.sh

.PHONY: test-host
test-host: packages-test build runtime images
	@[ "$$(id -u)" = 0 ] || { echo "the tests run containers: run them as root" >&2; exit 1; }
	@$(TOOL) jaeger

.PHONY: bench
bench: build runtime images ## Measure Podplane beside the bare runtime; the results go to bench-*.json too (root)
	@$(GO) build -o $(LOCAL)/bin/podplane-bench ./test/bench
	@$(LOCAL)/bin/podplane-bench -out bench-$$(date -u +%Y%m%dT%H%M%SZ).json $(ARGS)

.PHONY: sizing
sizing: build runtime images ## Measure what Podplane needs with 0, 30 and 100 pods (root)
	@$(GO) build -o $(LOCAL)/bin/podplane-sizing ./test/sizing
	@$(LOCAL)/bin/podplane-sizing $(ARGS)

.PHONY: lint
lint: ## Run go vet, staticcheck, gofumpt, the project's own checks and, where it can run, govulncheck
	@$(TOOL) lint
	@CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false" $(ROOT)/tools/lint.sh

.PHONY: proto
proto: ## Lint the protos and generate Go, gRPC, gateway and OpenAPI code beside them
	@$(TOOL) buf proto
	@cd proto && buf lint && buf generate

.PHONY: generate-check
generate-check: ## Check that the generated code is current
	@$(TOOL) buf proto
	@copy=$$(mktemp -d) && trap 'rm -rf "$$copy"' EXIT && cp -a proto "$$copy/" && (cd "$$copy/proto" && buf lint && buf generate) && \
		diff -r proto "$$copy/proto" || { echo "generated code is not current: run make proto and commit" >&2; exit 1; }

.PHONY: clean
clean: ## Remove what was built
	@rm -rf bin .local bench-*.json

# What a fresh Debian 12 may lack, and what for.
PACKAGES = "gcc:the C compiler" "libc6-dev:for the C compiler"

.PHONY: packages-runtime
packages-runtime:
	@$(DEBIAN) $(PACKAGES) "libseccomp-dev:to build runc" "pkg-config:to build runc" \
		"iptables:host ports and masquerading of pods" "iproute2:bridges" "ca-certificates:to download modules"

.PHONY: packages-images
packages-images:
	@$(DEBIAN) $(PACKAGES) "busybox-static:for a test image"

.PHONY: packages-test
packages-test:
	@$(DEBIAN) $(PACKAGES) "curl:the tutorial" "jq:the tutorial" "e2fsprogs:the power-cut test" "procps:process lists in tests" "prometheus:to check the alert rules and the dashboard"

.PHONY: packages-vm
packages-vm:
	@$(DEBIAN) "qemu-system-x86:virtual machines for tests" "debootstrap:the disk of virtual machines" "e2fsprogs:the disks of virtual machines" \
		"busybox-static:the start of virtual machines" "ca-certificates:the disk of virtual machines"
