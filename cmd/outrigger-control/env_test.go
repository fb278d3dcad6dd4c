// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"flag"
	"os"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write docs/reference/env-control.md anew")

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
		t.Error(file + " is not what the table says: run make generate")
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	env := map[string]string{"PILOT_DEBOUNCE_AFTER": "7ms", "PILOT_PUSH_THROTTLE": "3"}
	e, err := environmentFrom(func(k string) string { return env[k] })
	if err != nil || e.debounceAfter != 7*time.Millisecond || e.pushWorkers != 3 || e.ca.defaultTTL != 24*time.Hour || e.podNamespace != "istio-system" {
		t.Errorf("got %+v, %v", e, err)
	}
	for name, value := range map[string]string{
		"PILOT_DEBOUNCE_MAX": "soon", "PILOT_PUSH_THROTTLE": "0", "MAX_WORKLOAD_CERT_TTL": "-1h",
		"CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE": "1024", "CITADEL_SELF_SIGNED_ROOT_CERT_GRACE_PERIOD_PERCENTILE": "100",
		"CITADEL_SELF_SIGNED_ROOT_CERT_CHECK_INTERVAL": "often", "CA_TRUSTED_NODE_ACCOUNTS": "ztunnel", "OUTRIGGER_CA_KEY_TYPE": "P521",
		"OUTRIGGER_CA_CALLER_RATE": "many", "OUTRIGGER_CA_IDENTITY_RATE": "NaN", "ENABLE_CA_SERVER": "perhaps",
		"OUTRIGGER_KUBERNETES": "maybe", "TOKEN_AUDIENCES": " , ", "REQUIRE_3P_TOKEN": "si", "EXTERNAL_CA": "ISTIOD_RA_OTHER",
		"PILOT_CERT_PROVIDER": "k8s.io/signer", "ENABLE_LEADER_ELECTION": "no one",
	} {
		_, err := environmentFrom(func(k string) string { return map[string]string{name: value}[k] })
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), value) {
			t.Errorf("%s=%s gives %v, want an error that names both", name, value, err)
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
	if e.ca.root.KeyType != "RSA3072" || e.ca.root.Check >= 0 || e.ca.callerRate >= 0 || e.ca.identityRate != 100 || e.ca.root.Grace != 20 || !e.ca.enabled {
		t.Errorf("got %+v", e.ca)
	}
	if !e.ca.nodeAccounts["istio-system/ztunnel"] || !e.ca.nodeAccounts["kube-system/node"] || len(e.ca.nodeAccounts) != 2 {
		t.Errorf("the node accounts are %v", e.ca.nodeAccounts)
	}
}
