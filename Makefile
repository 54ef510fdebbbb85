# What one can do here. `make` alone lists it. Cargo's own settings (CARGO_TARGET_DIR, ...) are honoured; program,
# tests and benches share the release profile, so that nothing is built twice.
.DEFAULT_GOAL := help
SEEDS ?= 10000
FUZZ_SECONDS ?= 300
.PHONY: help demo test test-producers sim chaos bench bench-micro fuzz lint fmt up down

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## archive, query and restore on an embedded broker and a local folder; needs Rust and a C toolchain only
	@cargo run --release --quiet -- demo

test: ## all tests, against a real Kafka and S3 that it starts and stops; ARGS='...' go to cargo test
	@tests/run.sh $(ARGS)

test-producers: ## Kafka Connect, Streams, share groups, Spring, Watermill dead-letter for real; ARGS='spring' runs one
	@tests/producers/run.sh $(ARGS)

sim: ## the real code under simulated faults (SEEDS=10000 of them), and the protocols' models over larger instances
	@SIM_SEEDS=$(SEEDS) cargo test --release --quiet --test sim -- --nocapture
	@MODEL=full cargo test --release --quiet --test model -- --nocapture --test-threads=1

chaos: ## real faults: stores that fail, brokers and processes that are killed; ARGS='--kills 200 --zombies 50'
	@tests/chaos/run.sh $(ARGS)

bench: ## the program against bare loops, on a real Kafka and S3: benches/README.md; ARGS='--runs 1' is one round
	@benches/run.sh $(ARGS)

bench-micro: ## one core's speed, step by step: decode, encode, layout, ledger; and instructions a record, with valgrind
	@cargo bench --quiet
	@benches/instructions.sh --optional

fuzz: ## the decoder under cargo-fuzz for FUZZ_SECONDS=300; needs a nightly compiler and cargo-fuzz
	@cargo +nightly fuzz run --sanitizer none decode fuzz/corpus/decode -- -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1

lint: ## rustfmt, clippy, licences, advisories, shell scripts, deploy/
	@scripts/lint.sh

fmt: ## format the code
	@cargo fmt

up: ## start Kafka and S3 on this machine, for trying things out
	@localstack/up.sh

down: ## stop them and delete their data
	@localstack/down.sh
