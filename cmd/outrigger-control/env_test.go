// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/server"
)

var update = flag.Bool("update", false, "write docs/reference/env-control.md again")

//go:generate go test -run ^TestEnvironmentDoc$ . -update

func TestEnvironmentDoc(t *testing.T) {
	t.Parallel()
	const file = "../../docs/reference/env-control.md"
	var want bytes.Buffer
	if err := writeEnvironmentDoc(&want); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Error(file + " is out of date: run make generate")
	}
}

// environmentFrom reads the variables with a function. Variables with an empty value are not set.
func environmentFrom(getenv func(string) string) (environment, error) {
	var e environment
	err := e.readFrom(func(name string) (string, bool) { v := getenv(name); return v, v != "" })
	return e, err
}

// TestEmptyVariables checks that an empty value is replaced by the default, because manifests set
// variables to nothing, except where the empty value has its own meaning.
func TestEmptyVariables(t *testing.T) {
	t.Parallel()
	all := environmentWith(t, func(string) (string, bool) { return "", true })
	unset := environmentWith(t, func(string) (string, bool) { return "", false })
	for name, got := range map[string][2]any{
		"VALIDATION_WEBHOOK_CONFIG_NAME": {all.Cluster.WriteWebhooks, unset.Cluster.WriteWebhooks},
		"INJECTION_WEBHOOK_CONFIG_NAME":  {all.Cluster.WriteInjectors, unset.Cluster.WriteInjectors},
	} {
		if got != [2]any{false, true} {
			t.Errorf("%s: on with an empty value: %v, without a value: %v; want false and true", name, got[0], got[1])
		}
	}
	if all.CA.PluginDir != "" || unset.CA.PluginDir == "" || all.KeySets.RootFile != "" || unset.KeySets.RootFile == "" {
		t.Errorf("files with empty values: got %q and %q, want none", all.CA.PluginDir, all.KeySets.RootFile)
	}
	if all.Namespace != "istio-system" || all.Revision != "default" || all.Cluster.ID != "Kubernetes" || !all.CA.Enabled {
		t.Errorf("an empty value is not replaced by the default: %+v", all)
	}
	off := emptyTurnsOff()
	for _, v := range variables() {
		means := v.value != "" && regexp.MustCompile(`\bempty\b`).MatchString(v.doc)
		if means != slices.Contains(off, v.name) {
			t.Errorf("%s: the documentation describes an empty value: %v, the code handles it: %v", v.name, means, !means)
		}
	}
}

func environmentWith(t *testing.T, lookup func(string) (string, bool)) environment {
	t.Helper()
	var e environment
	if err := e.readFrom(lookup); err != nil {
		t.Fatal(err)
	}
	return e
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	env := map[string]string{"PILOT_DEBOUNCE_AFTER": "7ms", "PILOT_PUSH_THROTTLE": "3"}
	e, err := environmentFrom(func(k string) string { return env[k] })
	if err != nil || e.DebounceAfter != 7*time.Millisecond || e.PushWorkers != 3 || e.CA.DefaultTTL != 24*time.Hour || e.Namespace != "istio-system" {
		t.Errorf("got %+v, error %v", e, err)
	}
	for name, value := range map[string]string{
		"PILOT_DEBOUNCE_MAX": "soon", "PILOT_PUSH_THROTTLE": "0", "MAX_WORKLOAD_CERT_TTL": "-1h",
		"CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE": "1024", "CITADEL_SELF_SIGNED_ROOT_CERT_GRACE_PERIOD_PERCENTILE": "100",
		"CITADEL_SELF_SIGNED_ROOT_CERT_CHECK_INTERVAL": "often", "CA_TRUSTED_NODE_ACCOUNTS": "ztunnel", "OUTRIGGER_CA_KEY_TYPE": "P521",
		"OUTRIGGER_CA_CALLER_RATE": "many", "OUTRIGGER_CA_IDENTITY_RATE": "NaN", "ENABLE_CA_SERVER": "perhaps",
		"OUTRIGGER_KUBERNETES": "maybe", "TOKEN_AUDIENCES": " , ", "REQUIRE_3P_TOKEN": "si", "EXTERNAL_CA": "ISTIOD_RA_OTHER",
		"PILOT_CERT_PROVIDER": "k8s.io/signer", "ENABLE_LEADER_ELECTION": "no one", "OUTRIGGER_SHUTDOWN_DELAY": "5", "COMPLIANCE_POLICY": "fips",
		"OUTRIGGER_SHUTDOWN_DELAY ": "61m",
	} {
		name = strings.TrimSpace(name)
		_, err := environmentFrom(func(k string) string { return map[string]string{name: value}[k] })
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), value) {
			t.Errorf("%s=%s: got error %v, want one with both", name, value, err)
		}
	}
}

func TestAuthorityEnvironment(t *testing.T) {
	t.Parallel()
	env := map[string]string{
		"CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE": "3072", "CITADEL_SELF_SIGNED_ROOT_CERT_CHECK_INTERVAL": "0",
		"CA_TRUSTED_NODE_ACCOUNTS": "istio-system/ztunnel, kube-system/node", "OUTRIGGER_CA_CALLER_RATE": "0",
	}
	e, err := environmentFrom(func(k string) string { return env[k] })
	if err != nil {
		t.Fatal(err)
	}
	if e.CA.Root.KeyType != "RSA3072" || e.CA.Root.Check >= 0 || e.CA.CallerRate >= 0 || e.CA.IdentityRate != 100 || e.CA.Root.Grace != 20 || !e.CA.Enabled {
		t.Errorf("authority settings: got %+v", e.CA)
	}
	if !e.CA.NodeAccounts["istio-system/ztunnel"] || !e.CA.NodeAccounts["kube-system/node"] || len(e.CA.NodeAccounts) != 2 {
		t.Errorf("node accounts: got %v", e.CA.NodeAccounts)
	}
}

func TestReadersOfObjects(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"": "[]", "a/b": "[a/b]", " a/b , c/* ,": "[a/b c/*]"} {
		if got, err := accounts(text); err != nil || fmt.Sprint(got) != want {
			t.Errorf("accounts(%q) = %v, %v", text, got, err)
		}
	}
	for _, bad := range []string{"a", "a/", "/b", "a/b/c", "*/b", "*"} {
		if got, err := accounts(bad); err == nil || !strings.Contains(err.Error(), "namespace/account") {
			t.Errorf("accounts(%q) = %v, %v; want an error", bad, got, err)
		}
	}
}

func TestReplicasEnvironment(t *testing.T) {
	t.Parallel()
	_, err := environmentFrom(func(name string) string {
		return map[string]string{"OUTRIGGER_REPLICAS": "istiod"}[name]
	})
	if err == nil || !strings.Contains(err.Error(), "OUTRIGGER_REPLICAS") || !strings.Contains(err.Error(), "host:port") {
		t.Errorf("a name without a port: got error %v", err)
	}
}

func TestStatusVariables(t *testing.T) {
	t.Parallel()
	for name, values := range map[string][]string{
		"PILOT_STATUS_MAX_WORKERS": {"0", "-1", "x"}, "PILOT_STATUS_BURST": {"0", "1.5"}, "PILOT_STATUS_QPS": {"0", "-1", "NaN", "x"}, "PILOT_ENABLE_STATUS": {"perhaps"},
	} {
		for _, value := range values {
			_, err := environmentFrom(func(asked string) string {
				if asked == name {
					return value
				}
				return ""
			})
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s=%s: got error %v, want one with the name", name, value, err)
			}
		}
	}
	e, err := environmentFrom(func(string) string { return "" })
	if want := (server.StatusConfig{On: true, Workers: 100, Burst: 500, QPS: 100}); err != nil || e.Status != want || !e.Health {
		t.Errorf("defaults: got %+v, error %v; want %+v", e.Status, err, want)
	}
}

func TestCredentialReaders(t *testing.T) {
	t.Parallel()
	for _, list := range []string{"gateway", "a/", "/b", "a/b/c"} {
		_, err := environmentFrom(func(name string) string {
			if name == "OUTRIGGER_CREDENTIAL_READERS" {
				return list
			}
			return ""
		})
		if err == nil || !strings.Contains(err.Error(), "namespace/account") {
			t.Errorf("%q: got error %v, want one about namespace/account", list, err)
		}
	}
}
