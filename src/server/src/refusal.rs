//! Requests that get no decision: why, and how HTTP says so (RFC 9457).

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::time::Duration;
use tollgate_core::wire::MAX_BODY;

/// Why a request was not taken.
#[derive(Debug)]
pub enum Refusal {
    /// As much is being read or decided as may be.
    Overload(Full),
    /// No valid token.
    Unauthorized,
    /// What is wrong with it, and where.
    BadRequest(String),
    /// More than [`MAX_BODY`].
    TooLarge,
    /// The body was not there in time.
    Timeout(Duration),
}

/// What there is no more room for.
#[derive(Clone, Copy, Debug)]
pub enum Full {
    Requests,
    Bodies,
}

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Requests => "as many requests are being decided as may be: --max-in-flight",
            Self::Bodies => "as many large bodies are being read as may be: send smaller batches",
        })
    }
}

/// A [`Refusal`] as it is counted.
#[derive(Clone, Copy, Debug)]
pub enum Reason {
    Overload,
    Unauthorized,
    BadRequest,
    TooLarge,
    Timeout,
}

impl Reason {
    pub const ALL: [Self; 5] = [Self::Overload, Self::Unauthorized, Self::BadRequest, Self::TooLarge, Self::Timeout];

    pub fn name(self) -> &'static str {
        match self {
            Self::Overload => "overload",
            Self::Unauthorized => "unauthorized",
            Self::BadRequest => "bad_request",
            Self::TooLarge => "too_large",
            Self::Timeout => "timeout",
        }
    }
}

impl Refusal {
    pub fn reason(&self) -> Reason {
        match self {
            Self::Overload(_) => Reason::Overload,
            Self::Unauthorized => Reason::Unauthorized,
            Self::BadRequest(_) => Reason::BadRequest,
            Self::TooLarge => Reason::TooLarge,
            Self::Timeout(_) => Reason::Timeout,
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Overload(full) => {
                with(problem(StatusCode::SERVICE_UNAVAILABLE, &full.to_string()), header::RETRY_AFTER, "1")
            }
            Self::Unauthorized => with(
                problem(
                    StatusCode::UNAUTHORIZED,
                    "this endpoint answers callers that hold a valid token: send \"Authorization: Bearer TOKEN\"",
                ),
                header::WWW_AUTHENTICATE,
                "Bearer",
            ),
            Self::BadRequest(detail) => problem(StatusCode::BAD_REQUEST, &detail),
            Self::TooLarge => {
                problem(StatusCode::PAYLOAD_TOO_LARGE, &format!("a body has {MAX_BODY} bytes at the most"))
            }
            Self::Timeout(after) => {
                problem(StatusCode::REQUEST_TIMEOUT, &format!("the body was not there within {after:?}"))
            }
        }
    }
}

fn with(mut response: Response, name: header::HeaderName, value: &'static str) -> Response {
    response.headers_mut().insert(name, HeaderValue::from_static(value));
    response
}

/// A problem document.
pub fn problem(status: StatusCode, detail: &str) -> Response {
    #[derive(Serialize)]
    struct Problem<'a> {
        title: &'a str,
        status: u16,
        detail: &'a str,
    }
    let title = status.canonical_reason().unwrap_or("Error");
    let body = serde_json::to_vec(&Problem { title, status: status.as_u16(), detail }).unwrap_or_default();
    (status, [(header::CONTENT_TYPE, "application/problem+json")], body).into_response()
}
