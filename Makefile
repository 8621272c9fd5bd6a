# `make` lists what there is. Each target is a script in tools/ that can be run by itself.

.DEFAULT_GOAL := help
.PHONY: help setup build image run test test-docker simulate fuzz soak bench bench-policy bench-endpoint bench-leases lint fmt clean

help: ## Lists these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Finds or gets the tools that the other targets need, and says where it may not
	@tools/setup

build: ## Builds build/tollgate_filter.wasm and target/release/tollgate
	@tools/build

image: ## Makes OCI images of the filter in build/, for Istio and Envoy Gateway
	@tools/image

# PORT, UPSTREAM_PORT, ADMIN_PORT, ENDPOINT_PORT and STORE, as `make run PORT=8080` or from the
# environment: make hands both on.
run: ## Runs Envoy, the filter and the token endpoint until Ctrl-C (PORT=10000 STORE=memory)
	@exec tools/run

test: ## Runs every test; the last line is the sum
	@tools/test

test-docker: ## Checks envoy/docker in containers, where a docker engine runs
	@tools/test-docker

simulate: ## Looks for a seed that breaks a promise, on a virtual network and clock (SEEDS=1000, SEED=n)
	@tools/simulate

fuzz: ## Looks for input that breaks something (FUZZ_SECONDS=60, for each of seven targets)
	@tools/fuzz

soak: ## Ten minutes of traffic, pushed policies and faults, and a million identities (SOAK_SECONDS=600)
	@tools/soak

bench: ## Measures what the filter costs, beside Envoy without it and beside Envoy's own local rate limit
	@tools/bench

bench-policy: ## Measures how long a request's identities, route class, cost and keys take
	@tools/bench-policy

bench-endpoint: ## Measures the token endpoint: its speed, its memory, and twice what it can carry
	@tools/bench-endpoint

bench-leases: ## Simulates what leases cost and how much of a budget they use, for many sizes and loads
	@tools/bench-leases

lint: ## Checks format, clippy and the shell scripts
	@tools/lint

fmt: ## Formats the Rust code
	@cargo fmt --all

clean: ## Removes what was built here; the cache of tools stays
	@rm -rf build target
