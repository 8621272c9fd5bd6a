// Kinds of which no package has models: their fields, as far as envoy/ uses them, written down from the definitions of
// Envoy Gateway 1.9 (charts/gateway-crds-helm) and Istio's API of July 2026 (customresourcedefinitions.gen.yaml).

interface Metadata {
    name: string;
    namespace?: string;
}

interface TargetRef {
    group: string;
    kind: string;
    name: string;
    sectionName?: string;
}

interface SecretRef {
    group?: string;
    kind?: string;
    name: string;
    namespace?: string;
}

export interface ITrafficExtension {
    apiVersion: "extensions.istio.io/v1alpha1";
    kind: "TrafficExtension";
    metadata: Metadata;
    spec: {
        match?: Array<{ mode?: "UNDEFINED" | "CLIENT" | "SERVER" | "CLIENT_AND_SERVER"; ports?: Array<{ number: number }> }>;
        phase?: "UNSPECIFIED_PHASE" | "AUTHN" | "AUTHZ" | "STATS";
        priority?: number;
        selector?: { matchLabels?: { [label: string]: string } };
        targetRefs?: Array<{ group?: string; kind: string; name: string; namespace?: string }>;
        wasm: {
            failStrategy?: "FAIL_CLOSE" | "FAIL_OPEN" | "FAIL_RELOAD";
            imagePullPolicy?: "UNSPECIFIED_POLICY" | "IfNotPresent" | "Always";
            imagePullSecret?: string;
            pluginConfig?: object;
            pluginName?: string;
            sha256?: string;
            type?: "UNSPECIFIED_PLUGIN_TYPE" | "HTTP" | "NETWORK";
            url: string;
            verificationKey?: string;
            vmConfig?: { env?: Array<{ name: string; value?: string; valueFrom?: "INLINE" | "HOST" }> };
        };
    };
}

export interface IEnvoyExtensionPolicy {
    apiVersion: "gateway.envoyproxy.io/v1alpha1";
    kind: "EnvoyExtensionPolicy";
    metadata: Metadata;
    spec: {
        targetRefs: TargetRef[];
        wasm?: Array<{
            name?: string;
            rootID?: string;
            code: {
                type: "HTTP" | "Image";
                pullPolicy?: "IfNotPresent" | "Always";
                http?: { url: string; sha256?: string };
                image?: { url: string; sha256?: string; pullSecretRef?: SecretRef };
            };
            config?: object;
            failOpen?: boolean;
            env?: { hostKeys?: string[] };
        }>;
    };
}

export interface ISecurityPolicy {
    apiVersion: "gateway.envoyproxy.io/v1alpha1";
    kind: "SecurityPolicy";
    metadata: Metadata;
    spec: {
        targetRefs: TargetRef[];
        jwt?: {
            optional?: boolean;
            providers: Array<{
                name: string;
                issuer?: string;
                audiences?: string[];
                remoteJWKS?: { uri: string };
                claimToHeaders?: Array<{ claim: string; header: string }>;
                recomputeRoute?: boolean;
            }>;
        };
    };
}

export interface IEnvoyProxy {
    apiVersion: "gateway.envoyproxy.io/v1alpha1";
    kind: "EnvoyProxy";
    metadata: Metadata;
    spec: {
        provider?: {
            type: "Kubernetes" | "Host";
            kubernetes?: {
                envoyDeployment?: {
                    container?: {
                        env?: Array<{
                            name: string;
                            value?: string;
                            valueFrom?: { secretKeyRef: { name: string; key: string } };
                        }>;
                    };
                };
            };
        };
        bootstrap?: { type?: "Merge" | "Replace" | "JSONPatch"; value?: string };
    };
}

export interface IEnvoyPatchPolicy {
    apiVersion: "gateway.envoyproxy.io/v1alpha1";
    kind: "EnvoyPatchPolicy";
    metadata: Metadata;
    spec: {
        targetRef: TargetRef;
        type: "JSONPatch";
        priority?: number;
        jsonPatches?: Array<{
            type: string;
            name: string;
            operation: {
                op: "add" | "remove" | "replace" | "move" | "copy" | "test";
                path?: string;
                jsonPath?: string;
                from?: string;
                value?: object;
            };
        }>;
    };
}

export interface IClientTrafficPolicy {
    apiVersion: "gateway.envoyproxy.io/v1alpha1";
    kind: "ClientTrafficPolicy";
    metadata: Metadata;
    spec: {
        targetRefs: TargetRef[];
        path?: {
            escapedSlashesAction?: "KeepUnchanged" | "RejectRequest" | "UnescapeAndForward" | "UnescapeAndRedirect";
            disableMergeSlashes?: boolean;
        };
        headers?: {
            withUnderscoresAction?: "Allow" | "RejectRequest" | "DropHeader";
            earlyRequestHeaders?: { remove?: string[]; removeOnMatch?: object[]; set?: object[]; add?: object[] };
        };
        connection?: { bufferLimit?: string };
        clientIPDetection?: { xForwardedFor?: { numTrustedHops?: number } };
    };
}
