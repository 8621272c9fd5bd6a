//! The description of the HTTP interface that the program serves of itself. The tests hold it against the code: what it
//! gives as an example is taken, its bounds are the parser's, and its statuses are the router's.

use axum::http::header;
use axum::response::IntoResponse;

const DOCUMENT: &str = include_str!("../openapi.json");

/// `GET /openapi.json`
pub async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT)
}

#[cfg(test)]
mod tests;
