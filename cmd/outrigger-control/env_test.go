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

var update = flag.Bool("update", false, "write docs/ENV-control.md anew")

//go:generate go test -run ^TestEnvironmentDoc$ . -update

func TestEnvironmentDoc(t *testing.T) {
	t.Parallel()
	const file = "../../docs/ENV-control.md"
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
	if err != nil || e.debounceAfter != 7*time.Millisecond || e.pushWorkers != 3 || e.defaultCertTTL != 24*time.Hour || e.podNamespace != "istio-system" {
		t.Errorf("got %+v, %v", e, err)
	}
	for name, value := range map[string]string{"PILOT_DEBOUNCE_MAX": "soon", "PILOT_PUSH_THROTTLE": "0", "MAX_WORKLOAD_CERT_TTL": "-1h"} {
		_, err := environmentFrom(func(k string) string { return map[string]string{name: value}[k] })
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), value) {
			t.Errorf("%s=%s gives %v, want an error that names both", name, value, err)
		}
	}
}

func TestFlagsCheck(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		f    flags
		says string
	}{
		"kubernetes": {flags{registries: []string{"Kubernetes"}, grpcAddr: ":1", httpAddr: ":1"}, `"Kubernetes"`},
		"no port":    {flags{httpAddr: ":1"}, "no proxy could connect"},
		"no health":  {flags{grpcAddr: ":1"}, "/ready"},
	} {
		if err := tc.f.check(); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: got %v, want an error that says %q", name, err, tc.says)
		}
	}
	if err := (&flags{registries: []string{""}, secureGRPCAddr: ":1", httpAddr: ":1"}).check(); err != nil {
		t.Error(err)
	}
}
