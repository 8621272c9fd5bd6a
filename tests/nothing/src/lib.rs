//! A filter that does nothing, for `make bench`.

use proxy_wasm::traits::{Context, HttpContext};

proxy_wasm::main! {{
    proxy_wasm::set_http_context(|_, _| Box::new(Nothing));
}}

struct Nothing;

impl Context for Nothing {}

impl HttpContext for Nothing {}
