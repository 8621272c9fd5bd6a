use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use std::path::PathBuf;
use tempfile::TempDir;

/// A certificate authority of one test, with what it has issued in a folder.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: TempDir,
}

impl Authority {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "an authority of the tests");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        std::fs::write(folder.path().join("ca.pem"), certificate.pem()).expect("a file");
        Self { issuer: Issuer::new(params, key), folder }
    }

    /// Its own certificate.
    pub fn ca(&self) -> String {
        self.path("ca.pem")
    }

    /// A certificate for these names, addresses or URIs, and its key.
    pub fn issue(&self, name: &str, subjects: &[&str]) -> (String, String) {
        let (uris, names): (Vec<String>, Vec<String>) =
            subjects.iter().map(ToString::to_string).partition(|subject| subject.contains("://"));
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(names).expect("names");
        let uris = uris.into_iter().map(|uri| SanType::URI(uri.try_into().expect("ASCII")));
        params.subject_alt_names.extend(uris);
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let (certificate_file, key_file) = (format!("{name}.pem"), format!("{name}.key"));
        std::fs::write(self.folder.path().join(&certificate_file), certificate.pem()).expect("a file");
        std::fs::write(self.folder.path().join(&key_file), key.serialize_pem()).expect("a file");
        (self.path(&certificate_file), self.path(&key_file))
    }

    fn path(&self, file: &str) -> String {
        let path: PathBuf = self.folder.path().join(file);
        path.to_str().expect("text").to_owned()
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}
