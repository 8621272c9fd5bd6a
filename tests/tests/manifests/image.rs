//! The OCI images of the module, read back as Istio and Envoy Gateway do.

use crate::files::repository;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use tollgate_tests::tool;

/// The archives that tools/image.py makes, by their variants.
fn build(folder: &Path) {
    let mut command = Command::new("python3");
    command.arg(repository().join("tools/image.py")).arg(tool("TOLLGATE_WASM")).arg("0.1.0").arg(folder);
    let output = command.output().expect("Python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The files of a tar archive.
fn untar(bytes: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let text = |field: &[u8]| String::from_utf8(field.split(|byte| *byte == 0).next().unwrap_or_default().to_vec());
    let mut files = BTreeMap::new();
    let mut rest = bytes;
    while rest.len() >= 512 && rest[0] != 0 {
        assert_eq!(text(&rest[136..148]).expect("text").trim_matches(['0', ' ']), "", "no time is in it");
        let size = usize::from_str_radix(text(&rest[124..136]).expect("text").trim(), 8).expect("an octal number");
        files.insert(text(&rest[..100]).expect("text"), rest[512..512 + size].to_vec());
        rest = &rest[512 + size.div_ceil(512) * 512..];
    }
    files
}

/// What a program makes of some bytes.
fn through(program: &str, args: &[&str], bytes: &[u8]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bytes");
    std::fs::write(&file, bytes).expect("a file");
    let output = Command::new(program).args(args).arg(&file).output().expect("it runs");
    assert!(output.status.success(), "{program}");
    output.stdout
}

fn digest(bytes: &[u8]) -> String {
    let line = String::from_utf8(through("sha256sum", &[], bytes)).expect("text");
    format!("sha256:{}", line.split(' ').next().expect("a digest").trim_start_matches('\\'))
}

/// An archive whose blobs are all what their names say.
struct Archive {
    files: BTreeMap<String, Vec<u8>>,
    manifest: Value,
}

impl Archive {
    fn read(path: &Path) -> Self {
        let files = untar(&std::fs::read(path).expect("an archive"));
        let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).expect("JSON");
        assert_eq!(json(&files["oci-layout"])["imageLayoutVersion"], "1.0.0");
        for (name, bytes) in files.iter().filter(|(name, _)| name.starts_with("blobs/")) {
            assert_eq!(format!("blobs/{}", digest(bytes).replace(':', "/")), *name);
        }
        let index = json(&files["index.json"]);
        let mut archive = Self { files, manifest: Value::Null };
        archive.manifest = json(archive.blob(&index["manifests"][0]));
        archive.blob(&archive.manifest["config"]);
        archive
    }

    /// What a descriptor is of, of the size that it says.
    fn blob(&self, descriptor: &Value) -> &[u8] {
        let digest = descriptor["digest"].as_str().expect("a digest").replace(':', "/");
        let bytes = self.files.get(&format!("blobs/{digest}")).unwrap_or_else(|| panic!("no blob {digest}"));
        assert_eq!(descriptor["size"], bytes.len());
        bytes
    }

    fn layers(&self) -> Vec<(&str, &[u8])> {
        let layers = self.manifest["layers"].as_array().expect("layers");
        layers.iter().map(|layer| (layer["mediaType"].as_str().expect("a type"), self.blob(layer))).collect()
    }
}

#[test]
fn both_layouts_hold_the_module_byte_for_byte_and_are_the_same_each_time() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
    folders.iter().for_each(|folder| build(folder.path()));
    let module = std::fs::read(tool("TOLLGATE_WASM")).expect("the module");
    let mut archives = Vec::new();
    for name in ["tollgate-filter-compat.tar", "tollgate-filter-oci.tar"] {
        let [first, second] = [&folders[0], &folders[1]].map(|folder| std::fs::read(folder.path().join(name)));
        assert_eq!(first.expect("an archive"), second.expect("an archive"), "{name}");
        archives.push(Archive::read(&folders[0].path().join(name)));
    }

    // The last layer is an archive with plugin.wasm.
    let layers = archives[0].layers();
    let (kind, layer) = layers.last().expect("a layer");
    assert_eq!(*kind, "application/vnd.oci.image.layer.v1.tar+gzip");
    assert_eq!(layer[4..8], [0; 4], "no time is in it");
    let layer = through("gzip", &["-dc"], layer);
    assert!(untar(&layer)["plugin.wasm"] == module, "plugin.wasm is the module");
    let config: Value = serde_json::from_slice(archives[0].blob(&archives[0].manifest["config"])).expect("JSON");
    assert_eq!(config["rootfs"]["diff_ids"][0], digest(&layer));
    assert_eq!(archives[0].manifest["annotations"]["module.wasm.image/variant"], "compat");

    // Exactly two layers, of which one is the module.
    let layers = archives[1].layers();
    assert_eq!(layers.len(), 2);
    assert_eq!(layers[0].0, "application/vnd.module.wasm.config.v1+json");
    assert_eq!(layers[1].0, "application/vnd.module.wasm.content.layer.v1+wasm");
    assert!(layers[1].1 == module, "the layer is the module");
}
