//! As whom to go to Redis, and whom to trust there.

use super::file::File;
use super::is_unset;
use crate::store::{Access, Login};
use clap::ArgMatches;
use clap::parser::ValueSource;
use redis::{ClientTlsConfig, TlsCertificates};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The variables with the passwords themselves. There are no such flags: others see a program's arguments.
pub const REDIS_PASSWORD: &str = "TOLLGATE_REDIS_PASSWORD";
pub const SENTINEL_PASSWORD: &str = "TOLLGATE_SENTINEL_PASSWORD";

/// As it is written, by flags and variables.
#[derive(clap::Args)]
pub struct AccessArgs {
    /// The user to be in Redis (an ACL's). It needs the keys `tollgate*` and the commands EVAL, EVALSHA, PING, GET, SET,
    /// DEL, LRANGE, LTRIM, LREM, RPUSH, PEXPIRE and TIME; in a cluster CLUSTER SLOTS and ASKING too.
    #[arg(long, env = "TOLLGATE_REDIS_USER", value_name = "NAME")]
    redis_user: Option<String>,
    /// A file with the password for Redis. Or put it into TOLLGATE_REDIS_PASSWORD, or into the store's URL.
    #[arg(long, env = "TOLLGATE_REDIS_PASSWORD_FILE", value_name = "FILE")]
    redis_password_file: Option<PathBuf>,
    /// For a store at rediss://: a PEM file with the authorities to trust, instead of the system's.
    #[arg(long, env = "TOLLGATE_REDIS_CA_FILE", value_name = "FILE")]
    redis_ca_file: Option<PathBuf>,
    /// For a store at rediss:// that asks for one: a PEM file with the endpoint's certificate.
    #[arg(long, env = "TOLLGATE_REDIS_CERT_FILE", value_name = "FILE")]
    redis_cert_file: Option<PathBuf>,
    /// The key of that certificate, a PEM file.
    #[arg(long, env = "TOLLGATE_REDIS_KEY_FILE", value_name = "FILE")]
    redis_key_file: Option<PathBuf>,
    /// The user to be in the sentinels, where they ask for one; the one for Redis is not shown to them.
    #[arg(long, env = "TOLLGATE_SENTINEL_USER", value_name = "NAME")]
    sentinel_user: Option<String>,
    /// A file with the password for the sentinels. Or put it into TOLLGATE_SENTINEL_PASSWORD.
    #[arg(long, env = "TOLLGATE_SENTINEL_PASSWORD_FILE", value_name = "FILE")]
    sentinel_password_file: Option<PathBuf>,
}

impl AccessArgs {
    /// Takes from the file what neither a flag nor a variable says, and reads the files that are named.
    pub fn resolve(
        mut self,
        matches: &ArgMatches,
        file: &mut File,
        [redis, sentinel]: [Option<OsString>; 2],
    ) -> Result<Access, String> {
        let password = |flag: &str, variable, value, own: &Option<PathBuf>, file: &mut Option<PathBuf>| {
            let field = flag.replace('-', "_");
            password(flag, variable, value, own.as_deref(), matches.value_source(&field), file.take())
        };
        let redis_password = password(
            "redis-password-file",
            REDIS_PASSWORD,
            redis,
            &self.redis_password_file,
            &mut file.redis_password_file,
        )?;
        let sentinel_password = password(
            "sentinel-password-file",
            SENTINEL_PASSWORD,
            sentinel,
            &self.sentinel_password_file,
            &mut file.sentinel_password_file,
        )?;
        macro_rules! fill {
            ($($field:ident),*) => {
                $(if is_unset(matches, stringify!($field)) {
                    self.$field = file.$field.take();
                })*
            };
        }
        fill!(redis_user, redis_ca_file, redis_cert_file, redis_key_file, sentinel_user);
        let client_tls = match (&self.redis_cert_file, &self.redis_key_file) {
            (Some(certificate), Some(key)) => Some(ClientTlsConfig {
                client_cert: read("--redis-cert-file", certificate)?,
                client_key: read("--redis-key-file", key)?,
            }),
            (None, None) => None,
            _ => return Err("--redis-cert-file and --redis-key-file belong together: give both".into()),
        };
        let root_cert = self.redis_ca_file.as_deref().map(|path| read("--redis-ca-file", path)).transpose()?;
        let has_certificates = client_tls.is_some() || root_cert.is_some();
        Ok(Access {
            redis: Login { user: self.redis_user, password: redis_password },
            sentinel: Login { user: self.sentinel_user, password: sentinel_password },
            certificates: has_certificates.then_some(TlsCertificates { client_tls, root_cert }),
        })
    }
}

/// A password from the file that a flag or a variable names, else from a variable, else from the file that the settings
/// file names.
fn password(
    flag: &str,
    variable: &str,
    value: Option<OsString>,
    named: Option<&Path>,
    source: Option<ValueSource>,
    in_file: Option<PathBuf>,
) -> Result<Option<String>, String> {
    match (named, value) {
        (Some(_), Some(_)) if source == Some(ValueSource::EnvVariable) => {
            Err(format!("both {variable}_FILE and {variable} are set: leave one of them out"))
        }
        (Some(path), _) => read_password(&format!("--{flag}"), path).map(Some),
        (None, Some(value)) => match value.into_string() {
            Ok(password) if !password.is_empty() => Ok(Some(password)),
            Ok(_) => Err(format!("{variable}: is empty")),
            Err(_) => Err(format!("{variable}: is not text")),
        },
        (None, None) => in_file.map(|path| read_password(&flag.replace('-', "_"), &path)).transpose(),
    }
}

/// One line; what ends it is not part of the password.
fn read_password(name: &str, path: &Path) -> Result<String, String> {
    let file = path.display();
    let text = String::from_utf8(read(name, path)?).map_err(|_| format!("{name}: {file}: is not text"))?;
    let password = text.strip_suffix('\n').unwrap_or(&text);
    let password = password.strip_suffix('\r').unwrap_or(password);
    match password {
        "" => Err(format!("{name}: {file}: is empty")),
        _ if password.contains('\n') => Err(format!("{name}: {file}: has more than one line")),
        _ => Ok(password.to_owned()),
    }
}

fn read(name: &str, path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{name}: {}: cannot be read: {error}", path.display()))
}
