// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/outrigger-mesh/outrigger/controlplane/inject"
)

// TestInjectionFiles checks that an invalid file of the injector is an error at the start, and that
// later the last valid files stay in force.
func TestInjectionFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var known faults
	start := func() (*injection, error) {
		i := &injection{fault: known.set, log: slog.New(slog.DiscardHandler), cfg: InjectConfig{Dir: dir}, version: "1", texts: map[string]string{}, rejected: prometheus.NewGauge(prometheus.GaugeOpts{})}
		return i, i.readFiles()
	}
	write(injectorConfig, "policy: sometimes")
	if _, err := start(); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, injectorConfig)+": policy is") {
		t.Errorf("an invalid configuration: got error %v", err)
	}
	write(injectorConfig, "policy: disabled")
	i, err := start()
	if err != nil {
		t.Fatal(err)
	}
	if policy := i.current.Load().Config.Policy; policy != inject.PolicyDisabled {
		t.Errorf("policy: got %s, want disabled", policy)
	}
	look := func() error {
		var errs []error
		for _, f := range i.files {
			errs = append(errs, f.Look())
		}
		return errors.Join(errs...)
	}
	write(injectorValues, "global: {hub: mirror.example.com}")
	if err := look(); err != nil || i.current.Load().Values.Global.Hub != "mirror.example.com" || i.current.Load().Config.Policy != inject.PolicyDisabled {
		t.Errorf("values that are created later: error %v, hub %s", err, i.current.Load().Values.Global.Hub)
	}
	write(injectorValues, "global: [")
	if err := look(); err == nil || i.current.Load().Values.Global.Hub != "mirror.example.com" {
		t.Errorf("invalid values: error %v, hub %s", err, i.current.Load().Values.Global.Hub)
	}
	write(injectorConfig, "policy: enabled")
	if err := look(); err == nil || i.current.Load().Config.Policy != inject.PolicyEnabled || i.current.Load().Values.Global.Hub != "mirror.example.com" {
		t.Errorf("a valid configuration with invalid values: error %v, policy %s", err, i.current.Load().Config.Policy)
	}
	i.report(dir, errors.New("wrong"))
	if got := known.list(); testutil.ToFloat64(i.rejected) != 1 || len(got) != 1 || got[0] != injectorFault+": "+dir+": wrong" {
		t.Errorf("with invalid files the metric is not 1, or the faults are %q", got)
	}
	i.report(dir, nil)
	if got := known.list(); testutil.ToFloat64(i.rejected) != 0 || len(got) > 0 {
		t.Errorf("with valid files the metric is not 0, or the faults are %q", got)
	}
}
