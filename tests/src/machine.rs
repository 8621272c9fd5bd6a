//! What is measured on.

use std::fs::read_to_string;

/// Its processors, memory and kernel, and how busy it is now.
pub fn machine() -> String {
    let first = |file: &str, field: &str| {
        let text = read_to_string(file).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(field));
        line.map_or("?".into(), |rest| rest.trim_start_matches([':', '\t', ' ']).to_owned())
    };
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "{processors} processors ({}), {}, Linux {}, load before {}",
        first("/proc/cpuinfo", "model name"),
        first("/proc/meminfo", "MemTotal"),
        first("/proc/sys/kernel/osrelease", ""),
        first("/proc/loadavg", "").split(' ').next().unwrap_or("?"),
    )
}
