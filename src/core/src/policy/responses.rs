//! What callers are told.

/// How responses look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Responses {
    /// `RateLimit-Policy` and `RateLimit`.
    pub ratelimit: Option<FieldsVersion>,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    pub legacy: Option<LegacyReset>,
    /// Whether responses to admitted requests carry those too.
    pub on_admitted: bool,
    /// Whether such fields of the upstream's give way to ours.
    pub replace_upstream: bool,
    /// By how many hundredths at most a `Retry-After` is lengthened.
    pub retry_after_jitter: u8,
    /// The gRPC status of a rejection: 8 RESOURCE_EXHAUSTED, or 14 UNAVAILABLE.
    pub grpc_status: i32,
    /// Whether CORS preflights are exempt.
    pub exempt_preflight: bool,
    /// Origins whose pages may read a rejection; `*` for any.
    pub cors_origins: Vec<String>,
}

/// Which text the `RateLimit` fields follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldsVersion {
    /// draft-ietf-httpapi-ratelimit-headers-11.
    Draft11,
}

/// What `X-RateLimit-Reset` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegacyReset {
    /// Seconds from now, as Envoy's own rate limits have it.
    Seconds,
    /// The time itself, in seconds since 1970.
    Epoch,
}

impl Default for Responses {
    fn default() -> Self {
        Self {
            ratelimit: Some(FieldsVersion::Draft11),
            legacy: None,
            on_admitted: true,
            replace_upstream: true,
            retry_after_jitter: 0,
            grpc_status: 8,
            exempt_preflight: true,
            cors_origins: Vec::new(),
        }
    }
}

impl Responses {
    /// Whether an admitted request's response carries anything of ours.
    #[must_use]
    pub const fn marks_admitted(&self) -> bool {
        self.on_admitted && (self.ratelimit.is_some() || self.legacy.is_some())
    }
}
