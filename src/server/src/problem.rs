//! Errors as HTTP tells them: problem documents (RFC 9457).

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

/// An answer that says what is wrong, and perhaps where and what would be right.
pub fn problem(status: StatusCode, detail: &str) -> Response {
    let title = status.canonical_reason().unwrap_or("Error");
    let body = serde_json::json!({"title": title, "status": status.as_u16(), "detail": detail});
    (status, [(header::CONTENT_TYPE, "application/problem+json")], body.to_string()).into_response()
}
