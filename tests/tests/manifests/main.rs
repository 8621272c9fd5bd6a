//! What is in `envoy/` is what it claims to be: it is right to the tools of those who read it, and the Envoy files are run.

mod chart;
mod envoy;
mod files;
mod image;
mod kubernetes;
mod metrics;
