//! Asks a host for each fact once, and only when it is needed: in a proxy every question costs.

use super::{Attribute, Facts, Header};
use core::cell::{OnceCell, RefCell};

pub(crate) struct Once<'a> {
    facts: &'a dyn Facts,
    method: OnceCell<Vec<u8>>,
    path: OnceCell<Vec<u8>>,
    host: OnceCell<Vec<u8>>,
    headers: RefCell<Vec<(String, Header)>>,
    attributes: RefCell<Vec<(Attribute, Option<Vec<u8>>)>>,
}

impl<'a> Once<'a> {
    pub(crate) fn new(facts: &'a dyn Facts) -> Self {
        Self {
            facts,
            method: OnceCell::new(),
            path: OnceCell::new(),
            host: OnceCell::new(),
            headers: RefCell::default(),
            attributes: RefCell::default(),
        }
    }
}

impl Facts for Once<'_> {
    fn method(&self) -> Vec<u8> {
        self.method.get_or_init(|| self.facts.method()).clone()
    }

    fn path(&self) -> Vec<u8> {
        self.path.get_or_init(|| self.facts.path()).clone()
    }

    fn header(&self, name: &str) -> Header {
        if let Some((_, known)) = self.headers.borrow().iter().find(|(known, _)| known == name) {
            return known.clone();
        }
        let header = bare(self.facts.header(name));
        self.headers.borrow_mut().push((name.into(), header.clone()));
        header
    }

    fn client_address(&self) -> Vec<u8> {
        self.facts.client_address()
    }

    fn host(&self) -> Vec<u8> {
        self.host.get_or_init(|| self.facts.host()).clone()
    }

    fn list(&self, name: &str) -> Vec<u8> {
        self.facts.list(name)
    }

    fn content_length(&self) -> Header {
        bare(self.facts.content_length())
    }

    fn attribute(&self, attribute: &Attribute) -> Option<Vec<u8>> {
        if let Some((_, known)) = self.attributes.borrow().iter().find(|(known, _)| known == attribute) {
            return known.clone();
        }
        let value = self.facts.attribute(attribute);
        self.attributes.borrow_mut().push((attribute.clone(), value.clone()));
        value
    }
}

/// Without the whitespace around a value, which is no part of it (RFC 9110 §5.5). HTTP/1.1 takes it off; over HTTP/2 a
/// proxy may hand it on, and what comes behind take it off.
fn bare(header: Header) -> Header {
    match header {
        Header::One(value) => match value.trim_ascii() {
            bare if bare.len() < value.len() => Header::One(bare.to_vec()),
            _ => Header::One(value),
        },
        header => header,
    }
}
