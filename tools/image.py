"""Makes OCI images of the filter, in the two layouts that Istio and Envoy Gateway accept, without a registry.

    image.py MODULE VERSION FOLDER

writes FOLDER/tollgate-filter-compat.tar and FOLDER/tollgate-filter-oci.tar: OCI image layouts, which skopeo, crane and oras
copy to a registry. The same module and version give the same bytes: nothing in them is of this machine or of now.
"""

import gzip
import hashlib
import io
import json
import pathlib
import sys
import tarfile

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Image:
    """Blobs under their digests, and the manifest that names them."""

    def __init__(self):
        self.blobs = {}

    def add(self, kind, content):
        digest = hashlib.sha256(content).hexdigest()
        self.blobs[digest] = content
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    def finish(self, config, layers, annotations):
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers,
                    "annotations": annotations}
        return self.add(MANIFEST, text(manifest))

    def archive(self, manifest, name):
        index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
                 "manifests": [dict(manifest, annotations={"org.opencontainers.image.ref.name": name})]}
        files = [("oci-layout", text({"imageLayoutVersion": "1.0.0"})), ("index.json", text(index))]
        files += [(f"blobs/sha256/{digest}", content) for digest, content in sorted(self.blobs.items())]
        return tar(files)


def text(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def tar(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def about(version):
    return {"org.opencontainers.image.title": "tollgate-filter", "org.opencontainers.image.version": version,
            "org.opencontainers.image.licenses": "Apache-2.0"}


def compat(module, version):
    """One ordinary layer with plugin.wasm, as `FROM scratch` and one COPY make it."""
    image = Image()
    layer = tar([("plugin.wasm", module)])
    config = {"architecture": "wasm", "os": "wasi", "config": {},
              "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]}}
    manifest = image.finish(
        image.add("application/vnd.oci.image.config.v1+json", text(config)),
        [image.add("application/vnd.oci.image.layer.v1.tar+gzip", gzip.compress(layer, 9, mtime=0))],
        dict(about(version), **{"module.wasm.image/variant": "compat"}))
    return image, manifest


def oci(module, version):
    """Two layers with media types of their own: about the module, and the module."""
    image = Image()
    described = image.add("application/vnd.module.wasm.config.v1+json",
                          text({"type": "envoy_proxy", "abiVersions": ["v0-2-1"]}))
    manifest = image.finish(
        image.add("application/vnd.oci.image.config.v1+json", text({})),
        [described, image.add("application/vnd.module.wasm.content.layer.v1+wasm", module)],
        about(version))
    return image, manifest


def main():
    module, version, folder = pathlib.Path(sys.argv[1]).read_bytes(), sys.argv[2], pathlib.Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    print(f"sha256 of the module          {hashlib.sha256(module).hexdigest()}")
    for variant in (compat, oci):
        image, manifest = variant(module, version)
        path = folder / f"tollgate-filter-{variant.__name__}.tar"
        path.write_bytes(image.archive(manifest, version))
        print(f"{path}  image {manifest['digest']}")


main()
