// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write generated files")

func TestEnvDoc(t *testing.T) {
	t.Parallel()
	const file = "../../docs/reference/env-agent.md"
	var got bytes.Buffer
	if err := writeEnvDoc(&got); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("%s is not what the table says, run make generate:\n%s", file, diff)
	}
}

func TestReadEnvironment(t *testing.T) {
	t.Parallel()
	e, warnings := readEnvironment([]string{
		"POD_NAME=a=b", "SECRET_TTL=1h", "ISTIO_DELTA_XDS=false", "ENVOY_STATUS_PORT=15031", "MINIMUM_DRAIN_DURATION=", "GOGC=off",
		"ISTIO_META_X=y", `ISTIO_METAJSON_L={}`, "XDS_HEADER_Foo-Bar=1", "XDS_HEADER_=no name", "CA_HEADER_X=2",
		"OUTPUT_CERTS=/x", "DISABLE_ENVOY=T", "FILE_MOUNTED_CERTS=1", "FILE_DEBOUNCE_DURATION=1s", "GRPC_KEEPALIVE_INTERVAL=1m", "PKCS8_KEY=true", "CLOUD_PLATFORM=GCP",
		"GCP_METADATA=p|1|c|z", "GCP_QUOTA_PROJECT=q", "GKE_CLUSTER_URL=u", "GCE_METADATA_HOST=h", "KUBERNETES_SERVICE_HOST=k", "CA_PROVIDER=Citadel",
		"XDS_AUTH_PROVIDER=gcp", "BOOTSTRAP_XDS_AGENT=False", "WASM_MODULE_EXPIRY=24h0m0s", "DNS_PROXY_ADDR=", "HOME=/root",
	})
	if len(warnings) != 0 {
		t.Errorf("warnings: %q", warnings)
	}
	if e.podName != "a=b" || e.secretTTL != time.Hour || e.deltaXDS || e.statusPort != 15031 || e.minDrain != 5*time.Second || !e.goTuned {
		t.Errorf("values: %+v", e)
	}
	if e.prometheusPort != 15090 || e.trustDomain != "cluster.local" || e.graceRatio != 0.5 || e.certProvider != "istiod" {
		t.Errorf("defaults: %+v", e)
	}
	if diff := cmp.Diff(map[string]string{"ISTIO_META_X": "y", "ISTIO_METAJSON_L": "{}"}, e.metadata); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"foo-bar": "1"}, e.headers); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"x": "2"}, e.caHeaders); diff != "" {
		t.Error(diff)
	}
	if e.outputCerts != "/x" || !e.disableEnvoy || !e.fileMountedCerts || e.fileDebounce != time.Second || e.keepaliveInterval != time.Minute || e.keepaliveTimeout != 10*time.Second {
		t.Errorf("values: %+v", e)
	}
	if e.cloudPlatform != "gcp" || e.gcpMetadata != "p|1|c|z" || e.gcpQuotaProject != "q" || e.gkeURL != "u" || e.gcpServerHost != "h" || e.kubernetesHost != "k" {
		t.Errorf("values: %+v", e)
	}
	if diff := cmp.Diff([]string{"XDS_AUTH_PROVIDER"}, e.unserved); diff != "" {
		t.Error(diff)
	}
}

func TestReadEnvironmentBadValues(t *testing.T) {
	t.Parallel()
	for entry, want := range map[string]string{
		"ISTIO_DELTA_XDS=maybe":           `environment variable ISTIO_DELTA_XDS: "maybe" is neither true nor false; the default "true" is used`,
		"ENVOY_STATUS_PORT=70000":         `no port from 1 to 65535; the default "15021" is used`,
		"ISTIO_CPU_LIMIT=-1":              "no number from 0",
		"SECRET_TTL=1":                    "no duration such as 5s or 24h",
		"SECRET_GRACE_PERIOD_RATIO=1.5":   "write a number between 0 and 1",
		"CLOUD_PLATFORM=moon":             `"moon" is none of aws, azure, gcp, none; the default "" is used`,
		"CA_PROVIDER=GoogleCA":            `"GoogleCA" is not supported, only Citadel is; the default "Citadel" is used`,
		"PKCS8_KEY=maybe":                 "neither true nor false",
		"CREDENTIAL_FETCHER_TYPE=Mock":    "only JWT is",
		"CREDENTIAL_IDENTITY_PROVIDER=x":  "only GoogleComputeEngine is",
		"OUTPUT_KEY_CERT_TO_DIRECTORY=/x": "environment variable OUTPUT_KEY_CERT_TO_DIRECTORY is set but has no effect: use OUTPUT_CERTS",
	} {
		e, warnings := readEnvironment([]string{entry})
		if len(warnings) != 1 || !strings.Contains(warnings[0], want) {
			t.Errorf("%s: warnings %q, want %q", entry, warnings, want)
		}
		if !e.deltaXDS || e.statusPort != 15021 || e.cpuLimit != 0 || e.secretTTL != 24*time.Hour || e.graceRatio != 0.5 {
			t.Errorf("%s: the default is not used: %+v", entry, e)
		}
	}
}

// Every default of the table can be read, and no name stands there twice.
func TestVariables(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, v := range variables() {
		if names[v.name] {
			t.Errorf("%s stands in the table twice", v.name)
		}
		names[v.name] = true
		var e environment
		if err := v.set(&e, v.fallback); err != nil {
			t.Errorf("the default of %s: %v", v.name, err)
		}
		if v.doc == "" || strings.Contains(v.doc, "|") {
			t.Errorf("the text of %s does not fit in the document: %q", v.name, v.doc)
		}
	}
	for _, v := range unservedVariables() {
		if names[v.name] {
			t.Errorf("%s is both served and not", v.name)
		}
	}
}
