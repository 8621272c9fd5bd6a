//! Tollgate's filter: host calls in, host calls out, and nothing else. What it does is decided in `tollgate-core`.
//!
//! A root context holds one configuration; [`worker::Worker`] is what it shares with its streams. A request that only
//! local policies concern is decided in its headers callback. One that needs the endpoint is paused, joins the
//! worker's waiting list and wakes the root, which asks for all that wait in one call, and resumes or answers each.
//! The root sends the calls because it outlives every stream, so no answer is lost with a client that left.
//!
//! Nothing here may trap: a trap takes the worker's whole VM with it. Header values are bytes, never `String`s (the
//! SDK's `String` getters panic on bytes that are not UTF-8), and `Cargo.toml` denies what can panic.

// A plugin has no callers: what is public here is the SDK's.
#![allow(missing_docs)]

mod host;
mod identity;
mod metrics;
mod tables;
mod worker;

use crate::host::Buffer;
use crate::worker::{Progress, Ticket, Worker};
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType, LogLevel};
use std::rc::Rc;
use tollgate_core::policy::PolicySet;

proxy_wasm::main! {{
    proxy_wasm::set_log_level(LogLevel::Info);
    proxy_wasm::set_root_context(|id| Box::new(Root { id, worker: None }));
}}

/// One configuration in one VM.
struct Root {
    id: u32,
    /// There once the configuration has been read.
    worker: Option<Rc<Worker>>,
}

impl Context for Root {
    fn on_http_call_response(&mut self, token: u32, _headers: usize, body_size: usize, _trailers: usize) {
        if let Some(worker) = &self.worker {
            worker.call_ended(token, body_size);
        }
    }
}

impl RootContext for Root {
    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }

    /// Reads the policy. `false` makes Envoy refuse the configuration: it keeps the one before, or does not start.
    fn on_configure(&mut self, _size: usize) -> bool {
        let text = host::buffer(Buffer::Configuration, usize::MAX).unwrap_or_default();
        match PolicySet::read(&text, &host::environment) {
            Ok(set) => {
                let version = set.version.as_deref().unwrap_or("without a version");
                host::log(LogLevel::Info, &format!("policy {version} is in force: {} policies", set.policies().len()));
                for warning in set.warnings() {
                    host::log(LogLevel::Warn, &format!("is this meant? {warning}"));
                }
                self.worker = Worker::new(self.id, set).map(Rc::new);
                self.worker.as_deref().map(Worker::watch).is_some()
            }
            Err(errors) => {
                host::log(LogLevel::Error, &format!("the policy is refused, {} to mend:", errors.issues().len()));
                for issue in errors.issues() {
                    host::log(LogLevel::Error, &issue.to_string());
                }
                false
            }
        }
    }

    fn create_http_context(&self, id: u32) -> Option<Box<dyn HttpContext>> {
        // The SDK panics on `None`, so there is always a stream; without a policy it refuses what it is given.
        Some(Box::new(Stream { id, worker: self.worker.clone(), ticket: Rc::new(Ticket::new()) }))
    }

    fn on_queue_ready(&mut self, _queue: u32) {
        if let Some(worker) = &self.worker {
            worker.woken();
        }
    }

    fn on_tick(&mut self) {
        if let Some(worker) = &self.worker {
            worker.tick();
        }
    }
}

/// One request.
struct Stream {
    id: u32,
    worker: Option<Rc<Worker>>,
    /// How far its decision is; the worker moves it on when the endpoint has answered.
    ticket: Rc<Ticket>,
}

impl Stream {
    /// The same in every request phase: a host may hand on a body although the headers were paused.
    fn action(&self) -> Action {
        match self.ticket.progress.get() {
            Progress::New | Progress::Admitted => Action::Continue,
            Progress::Waiting | Progress::Rejected => Action::Pause,
        }
    }

    fn leave(&self) {
        if let (Progress::Waiting, Some(worker)) = (self.ticket.progress.get(), &self.worker) {
            worker.left(self.id);
        }
    }
}

impl Context for Stream {}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _count: usize, end_of_stream: bool) -> Action {
        match &self.worker {
            Some(worker) => worker.decide(self.id, end_of_stream, &self.ticket),
            None => {
                self.ticket.progress.set(Progress::Rejected);
                host::refuse_without_policy();
            }
        }
        self.action()
    }

    fn on_http_request_body(&mut self, _size: usize, _end_of_stream: bool) -> Action {
        self.action()
    }

    fn on_http_request_trailers(&mut self, _count: usize) -> Action {
        self.action()
    }

    fn on_http_response_headers(&mut self, _count: usize, _end_of_stream: bool) -> Action {
        // Envoy has answered a request that waits, for a timeout of its own say: there cannot be a second answer.
        self.leave();
        if let Some(worker) = &self.worker {
            worker.respond(&self.ticket);
        }
        Action::Continue
    }

    /// The last sign of a stream, also of one whose client left while it was paused.
    fn on_log(&mut self) {
        self.leave();
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.leave();
    }
}
