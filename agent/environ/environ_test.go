// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package environ

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestReadEnvironment(t *testing.T) {
	t.Parallel()
	e, warnings := Read([]string{
		"POD_NAME=a=b", "SECRET_TTL=1h", "ISTIO_DELTA_XDS=false", "ENVOY_STATUS_PORT=15031", "MINIMUM_DRAIN_DURATION=", "GOGC=off",
		"ISTIO_META_X=y", `ISTIO_METAJSON_L={}`, "XDS_HEADER_Foo-Bar=1", "XDS_HEADER_=no name", "CA_HEADER_X=2",
		"OUTPUT_CERTS=/x", "DISABLE_ENVOY=T", "FILE_MOUNTED_CERTS=1", "FILE_DEBOUNCE_DURATION=1s", "GRPC_KEEPALIVE_INTERVAL=1m", "PKCS8_KEY=true", "CLOUD_PLATFORM=GCP",
		"GCP_METADATA=p|1|c|z", "GCP_QUOTA_PROJECT=q", "GKE_CLUSTER_URL=u", "GCE_METADATA_HOST=h", "KUBERNETES_SERVICE_HOST=k", "CA_PROVIDER=Citadel",
		"XDS_AUTH_PROVIDER=gcp", "BOOTSTRAP_XDS_AGENT=False", "WASM_MODULE_EXPIRY=24h0m0s", "DNS_PROXY_ADDR=", "HOME=/root",
	})
	if len(warnings) != 0 {
		t.Errorf("warnings: %q", warnings)
	}
	if e.Workload.Name != "a=b" || e.Identity.TTL != time.Hour || e.Envoy.DeltaXDS || e.Envoy.StatusPort != 15031 || e.Envoy.MinDrain != 5*time.Second || !e.GoTuned {
		t.Errorf("values: %+v", e)
	}
	if e.Envoy.PrometheusPort != 15090 || e.Workload.TrustDomain != "cluster.local" || e.Identity.GraceRatio != 0.5 || e.Upstream.CertProvider != "istiod" {
		t.Errorf("defaults: %+v", e)
	}
	if diff := cmp.Diff(map[string]string{"ISTIO_META_X": "y", "ISTIO_METAJSON_L": "{}"}, e.Metadata); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"foo-bar": "1"}, e.Upstream.XDSHeaders); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"x": "2"}, e.Upstream.CAHeaders); diff != "" {
		t.Error(diff)
	}
	if e.Identity.OutputDir != "/x" || !e.Envoy.Disabled || !e.Identity.FileMounted || e.Identity.FileDebounce != time.Second || e.Upstream.KeepaliveInterval != time.Minute || e.Upstream.KeepaliveTimeout != 10*time.Second {
		t.Errorf("values: %+v", e)
	}
	if e.Cloud.Platform != "gcp" || e.Cloud.GCPMetadata != "p|1|c|z" || e.Cloud.GCPQuotaProject != "q" || e.Cloud.GKEClusterURL != "u" || e.Cloud.GCEMetadataHost != "h" || e.Workload.KubernetesHost != "k" {
		t.Errorf("values: %+v", e)
	}
	if diff := cmp.Diff([]string{"XDS_AUTH_PROVIDER"}, e.Unserved); diff != "" {
		t.Error(diff)
	}
}

func TestReadEnvironmentBadValues(t *testing.T) {
	t.Parallel()
	for entry, want := range map[string]string{
		"ISTIO_DELTA_XDS=maybe":           `environment variable ISTIO_DELTA_XDS: "maybe" is neither true nor false; the default "true" is used`,
		"ENVOY_STATUS_PORT=70000":         `not a port from 1 to 65535; the default "15021" is used`,
		"ISTIO_CPU_LIMIT=-1":              "not a number of at least 0",
		"SECRET_TTL=1":                    "not a duration such as 5s or 24h",
		"SECRET_GRACE_PERIOD_RATIO=1.5":   "write a number between 0 and 1",
		"CLOUD_PLATFORM=moon":             `"moon" is not one of aws, azure, gcp, none; the default "" is used`,
		"CA_PROVIDER=GoogleCA":            `"GoogleCA" is not supported; only Citadel is; the default "Citadel" is used`,
		"PKCS8_KEY=maybe":                 "neither true nor false",
		"CREDENTIAL_FETCHER_TYPE=Mock":    "only JWT is",
		"CREDENTIAL_IDENTITY_PROVIDER=x":  "only GoogleComputeEngine is",
		"OUTPUT_KEY_CERT_TO_DIRECTORY=/x": "environment variable OUTPUT_KEY_CERT_TO_DIRECTORY is set but has no effect: use OUTPUT_CERTS",
	} {
		e, warnings := Read([]string{entry})
		if len(warnings) != 1 || !strings.Contains(warnings[0], want) {
			t.Errorf("%s: warnings %q, want %q", entry, warnings, want)
		}
		if !e.Envoy.DeltaXDS || e.Envoy.StatusPort != 15021 || e.Envoy.CPULimit != 0 || e.Identity.TTL != 24*time.Hour || e.Identity.GraceRatio != 0.5 {
			t.Errorf("%s: the default is not used: %+v", entry, e)
		}
	}
}

// TestVariables checks that the default of each variable can be parsed, and that names are unique.
func TestVariables(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, v := range variables() {
		if names[v.name] {
			t.Errorf("%s is in the table twice", v.name)
		}
		names[v.name] = true
		var e Values
		if err := v.set(&e, v.fallback); err != nil {
			t.Errorf("the default of %s: %v", v.name, err)
		}
		if v.doc == "" || strings.Contains(v.doc, "|") {
			t.Errorf("the text of %s does not fit in the document: %q", v.name, v.doc)
		}
	}
	for _, v := range unservedVariables() {
		if names[v.name] {
			t.Errorf("%s is both read and listed as not read", v.name)
		}
	}
}

// TestHeaders checks that headers that gRPC would refuse are ignored, because they would prevent
// every stream.
func TestHeaders(t *testing.T) {
	t.Parallel()
	e, warnings := Read([]string{
		"XDS_HEADER_X-Good=a b", "XDS_HEADER_T-bin=\xff", "XDS_HEADER_BAD NAME=1", "XDS_HEADER_A\u00e4=1", "CA_HEADER_LINES=s3cr3t\r\nx: y",
	})
	if want := map[string]string{"x-good": "a b", "t-bin": "\xff"}; !maps.Equal(e.Upstream.XDSHeaders, want) || len(e.Upstream.CAHeaders) != 0 {
		t.Errorf("headers %q and %q, want %q", e.Upstream.XDSHeaders, e.Upstream.CAHeaders, want)
	}
	text := strings.Join(warnings, "\n")
	for _, want := range []string{"XDS_HEADER_BAD NAME is ignored", "XDS_HEADER_A\u00e4 is ignored", "CA_HEADER_LINES is ignored"} {
		if !strings.Contains(text, want) {
			t.Errorf("the warnings do not say %q: %q", want, warnings)
		}
	}
	if len(warnings) != 3 || strings.Contains(text, "s3cr3t") {
		t.Errorf("warnings %q", warnings)
	}
}

func TestGRPCBootstrapEnvironment(t *testing.T) {
	t.Parallel()
	for entry, want := range map[string]string{"OTHER=": "etc/istio/proxy/grpc-bootstrap.json", "GRPC_XDS_BOOTSTRAP=": "", "GRPC_XDS_BOOTSTRAP=/x": "/x"} {
		if e, warnings := Read([]string{entry}); e.GRPCBootstrap != want || len(warnings) != 0 {
			t.Errorf("%s: %q, %q", entry, e.GRPCBootstrap, warnings)
		}
	}
}
