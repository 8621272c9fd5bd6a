# Shared by the scripts in this folder; sourced, never run.
# shellcheck shell=bash
# shellcheck disable=SC2034  # the variables are for the scripts that source this

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TARGET_DIR=${CARGO_TARGET_DIR:-$ROOT/target}
[[ $TARGET_DIR == /* ]] || TARGET_DIR=$PWD/$TARGET_DIR
# A target directory of its own: the wasm toolchain may be another rustc than the one on PATH, and
# two compilers that share a directory rebuild each other's work.
WASM_TARGET_DIR=$TARGET_DIR/wasm
TOOLS_ENV=$TARGET_DIR/tools.env
LOG_DIR=$TARGET_DIR/logs
FILTER=$ROOT/build/tollgate_filter.wasm
SERVER=$TARGET_DIR/release/tollgate
WASM_TARGET=wasm32-unknown-unknown

say() { printf '%s\n' "$*"; }
warn() { printf 'warning: %s\n' "$*" >&2; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

# at_least HAVE WANT: is version HAVE the same as WANT or newer?
at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

# Runs tools/setup for the named tools and takes over what it found.
need() {
    "$ROOT/tools/setup" "$@"
    # shellcheck source=/dev/null
    source "$TOOLS_ENV"
}

# cargo with the toolchain that tools/setup found for the WebAssembly target. RUSTFLAGS are dropped
# because they would replace the --sysroot, and are written for the native target anyway.
wasm_cargo() {
    local -a vars=("CARGO_TARGET_DIR=$WASM_TARGET_DIR")
    [[ -z $WASM_RUSTC ]] || vars+=("RUSTC=$WASM_RUSTC")
    [[ -z $WASM_LINKER ]] || vars+=("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=$WASM_LINKER")
    [[ -z $WASM_RUSTFLAGS ]] || vars+=("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS=$WASM_RUSTFLAGS")
    env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS -u RUSTC "${vars[@]}" "$WASM_CARGO" "$@"
}

# Builds what the end-to-end tests and `make run` start: the filter and the token endpoint.
build_all() {
    "$ROOT/tools/build-filter"
    build_server
}

build_server() {
    say "Building the token endpoint (one to three minutes the first time)."
    (cd "$ROOT" && CARGO_TARGET_DIR=$TARGET_DIR cargo build --release --package tollgate)
}

# The test harness finds everything by these; all of them are absolute.
export_test_env() {
    export TOLLGATE_BIN=$SERVER TOLLGATE_WASM=$FILTER ENVOY_BIN REDIS_SERVER_BIN SCHEMATHESIS_PYTHON
    export PROMTOOL_BIN HELM_PYTHON MODELS_DIR NODE_BIN
}

# What the compiler uses by default for this target. A stripped module does not say so itself.
WASM_FEATURES=(--enable-bulk-memory --enable-nontrapping-float-to-int --enable-sign-ext
    --enable-mutable-globals --enable-reference-types --enable-multivalue)

# What the SDK exports and the filter has no use for. A callback that is not there is not made, which saves two for each
# request, and what it needs is not in the module.
UNUSED_EXPORTS=('proxy_on_grpc_*' 'proxy_on_downstream_*' 'proxy_on_upstream_*' proxy_on_new_connection
    proxy_on_foreign_function proxy_on_response_body proxy_on_response_trailers proxy_on_done __data_end __heap_base)

# optimize FROM TO: unless that was done already, or cannot be.
optimize() {
    if [[ -z $WASM_OPT ]]; then
        # As old as what it was made from: it is no result, should the optimizer be there the next time.
        cp --preserve=timestamps "$1" "$2"
        return
    fi
    [[ $2 -nt $1 && $2 -nt ${BASH_SOURCE[0]} ]] && return
    say "Making it smaller with wasm-opt (a quarter of a minute)."
    "$WASM_OPT" "${UNUSED_EXPORTS[@]/#/--remove-exports=}" -Oz --converge "${WASM_FEATURES[@]}" "$1" -o "$2.new"
    mv "$2.new" "$2"
}
