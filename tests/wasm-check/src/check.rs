//! What a module must be to ship: imports, exports and size, all faults reported together.

use std::fmt;

use wasmparser::{Import, Parser, Payload};

/// The import modules that Envoy provides to a proxy-wasm module.
const ALLOWED_MODULES: [&str; 2] = ["env", "wasi_snapshot_preview1"];

/// The export by which a host knows the ABI: proxy-wasm 0.2.1, the newest that Envoy speaks.
const ABI_EXPORT: &str = "proxy_abi_version_0_2_1";

/// What is said of a module that may ship.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    bytes: usize,
    max_bytes: usize,
    imports: usize,
}

/// One reason not to ship a module.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    NotAModule(String),
    ForeignImport { module: String, name: String },
    NoAbiExport,
    TooLarge { bytes: usize, max_bytes: usize },
}

/// Every reason found, never empty.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Faults(Vec<Fault>);

/// Checks the bytes of a module; `max_bytes` itself is still small enough.
pub(crate) fn check(module: &[u8], max_bytes: usize) -> Result<Facts, Faults> {
    let outline = Outline::read(module).map_err(|error| Faults(vec![Fault::NotAModule(error.to_string())]))?;
    let mut faults = outline.foreign_imports;
    if !outline.has_abi_export {
        faults.push(Fault::NoAbiExport);
    }
    let bytes = module.len();
    if bytes > max_bytes {
        faults.push(Fault::TooLarge { bytes, max_bytes });
    }
    if faults.is_empty() { Ok(Facts { bytes, max_bytes, imports: outline.imports }) } else { Err(Faults(faults)) }
}

/// The parts of a module that matter here.
#[derive(Default)]
struct Outline {
    imports: usize,
    foreign_imports: Vec<Fault>,
    has_abi_export: bool,
}

impl Outline {
    fn read(module: &[u8]) -> wasmparser::Result<Self> {
        let mut outline = Self::default();
        for payload in Parser::new(0).parse_all(module) {
            match payload? {
                Payload::ImportSection(section) => {
                    for import in section.into_imports() {
                        outline.add_import(import?);
                    }
                }
                Payload::ExportSection(section) => {
                    for export in section {
                        outline.has_abi_export |= export?.name == ABI_EXPORT;
                    }
                }
                _ => {}
            }
        }
        Ok(outline)
    }

    fn add_import(&mut self, import: Import<'_>) {
        self.imports = self.imports.saturating_add(1);
        if !ALLOWED_MODULES.contains(&import.module) {
            self.foreign_imports
                .push(Fault::ForeignImport { module: import.module.to_owned(), name: import.name.to_owned() });
        }
    }
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, max_bytes, imports } = self;
        write!(f, "{bytes} bytes of at most {max_bytes}, {imports} imports, all provided by Envoy")
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAModule(why) => write!(f, "it is not a WebAssembly module: {why}"),
            Self::ForeignImport { module, name } => write!(
                f,
                "it imports `{name}` from `{module}`; Envoy provides only `{}` \
                 (find the crate that brings it with `cargo tree -p tollgate-filter`)",
                ALLOWED_MODULES.join("` and `")
            ),
            Self::NoAbiExport => {
                write!(f, "it does not export `{ABI_EXPORT}`, so Envoy would not take it for a proxy-wasm module")
            }
            Self::TooLarge { bytes, max_bytes } => {
                write!(f, "it has {bytes} bytes; at most {max_bytes} are allowed")
            }
        }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            let line_break = if index == 0 { "" } else { "\n" };
            write!(f, "{line_break}  - {fault}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use wasm_encoder::{
        CodeSection, EntityType, ExportKind, ExportSection, Function, FunctionSection, ImportSection, Module,
        TypeSection,
    };

    use super::*;

    const ROOMY: usize = 100_000;

    /// A module with these imports, each a function, and one exported function.
    fn module(imports: &[(&str, &str)], export: &str) -> Vec<u8> {
        let mut types = TypeSection::new();
        types.ty().function([], []);
        let mut import_section = ImportSection::new();
        for (from, name) in imports {
            import_section.import(from, name, EntityType::Function(0));
        }
        let mut functions = FunctionSection::new();
        functions.function(0);
        let mut exports = ExportSection::new();
        exports.export(export, ExportKind::Func, import_section.len());
        let mut code = CodeSection::new();
        let mut body = Function::new([]);
        body.instructions().end();
        code.function(&body);

        let mut module = Module::new();
        module.section(&types).section(&import_section).section(&functions).section(&exports).section(&code);
        module.finish()
    }

    fn faults(module: &[u8], max_bytes: usize) -> Vec<Fault> {
        check(module, max_bytes).map_or_else(|faults| faults.0, |_| Vec::new())
    }

    #[test]
    fn a_module_that_envoy_can_load_passes_with_its_facts() {
        let good = module(&[("env", "proxy_log"), ("wasi_snapshot_preview1", "clock_time_get")], ABI_EXPORT);
        assert_eq!(check(&good, ROOMY), Ok(Facts { bytes: good.len(), max_bytes: ROOMY, imports: 2 }));
    }

    #[test]
    fn every_foreign_import_is_named() {
        let bad = module(
            &[("__wbindgen_placeholder__", "now"), ("env", "proxy_log"), ("wasi_unstable", "fd_write")],
            ABI_EXPORT,
        );
        let foreign =
            |module: &str, name: &str| Fault::ForeignImport { module: module.to_owned(), name: name.to_owned() };
        assert_eq!(
            faults(&bad, ROOMY),
            [foreign("__wbindgen_placeholder__", "now"), foreign("wasi_unstable", "fd_write"),]
        );
    }

    #[test]
    fn a_module_without_the_abi_export_is_refused() {
        let old = module(&[], "proxy_abi_version_0_1_0");
        assert_eq!(faults(&old, ROOMY), [Fault::NoAbiExport]);
    }

    #[test]
    fn the_size_limit_is_inclusive() {
        let module = module(&[], ABI_EXPORT);
        let bytes = module.len();
        assert!(check(&module, bytes).is_ok());
        let max_bytes = bytes.saturating_sub(1);
        assert_eq!(faults(&module, max_bytes), [Fault::TooLarge { bytes, max_bytes }]);
    }

    #[test]
    fn all_faults_are_reported_together() {
        let bad = module(&[("js", "f")], "main");
        let text = check(&bad, 1).map_or_else(|faults| faults.to_string(), |_| String::new());
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("imports `f` from `js`"), "{text}");
        assert!(text.contains(ABI_EXPORT), "{text}");
        assert!(text.contains("at most 1 are allowed"), "{text}");
    }

    #[test]
    fn what_is_not_webassembly_is_refused() {
        for not_wasm in [&b""[..], b"\x7fELF", b"\0asm\x01\0\0"] {
            let faults = faults(not_wasm, ROOMY);
            assert!(matches!(faults.as_slice(), [Fault::NotAModule(_)]), "{faults:?}");
        }
    }
}
