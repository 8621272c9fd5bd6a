//! The description of the HTTP interface that the program serves of itself. The tests hold it against the code: what it
//! gives as an example is taken, its bounds are the parser's, and its statuses are the router's.

use axum::body::Bytes;
use axum::http::header;
use axum::response::IntoResponse;
use serde_json::Value;

const DOCUMENT: &str = include_str!("../openapi.json");

/// `GET /openapi.json`: with or without the word that callers need no token.
#[derive(Clone)]
pub struct Document(Bytes);

impl Document {
    pub fn new(asks_for_tokens: bool) -> Self {
        if !asks_for_tokens {
            return Self(Bytes::from_static(DOCUMENT.as_bytes()));
        }
        let mut document: Value = serde_json::from_str(DOCUMENT).unwrap_or_default();
        let paths = document["paths"].as_object_mut().into_iter().flat_map(|paths| paths.values_mut());
        for operation in paths.flat_map(|path| path.as_object_mut()).flat_map(|path| path.values_mut()) {
            if let Some(ways) = operation.get_mut("security").and_then(Value::as_array_mut) {
                ways.retain(|way| way["bearer"].is_array());
            }
        }
        Self(document.to_string().into())
    }

    pub fn answer(self) -> impl IntoResponse {
        ([(header::CONTENT_TYPE, "application/json")], self.0)
    }
}

#[cfg(test)]
mod tests;
