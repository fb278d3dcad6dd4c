// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/config/file"
	"github.com/outrigger-mesh/outrigger/controlplane/config/memory"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

var drivers = map[string]config.Driver{"fs": file.Open, "memory": memory.Open}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func workload(name, address string) string {
	return "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: " + name + "}\nspec: {address: " + address + "}\n---\n"
}

func TestOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	reg := prometheus.NewRegistry()
	for range 2 { // stores share metrics
		if _, err := config.Open("fs://"+dir, config.OpenConfig{Drivers: drivers, Registerer: reg}); err != nil {
			t.Fatal(err)
		}
	}
	for address, want := range map[string]string{
		"etcd://host:2379/x": `config source "etcd://host:2379/x": the scheme is unknown: etcd; write fs:///directory or memory://`,
		"fs://etc/config":    `config source "fs://etc/config" names the host "etc": write three slashes, fs:///etc/config`,
		"fs://":              `config source "fs://" names no directory: write fs:///directory`,
		"/etc/config":        `config source "/etc/config" has no scheme: write fs:///etc/config`,
		"etc":                `config source "etc" has no scheme: write fs:///`,
		"fs:///does/not":     "open config directory: stat /does/not: no such file or directory",
		"::":                 `config source "::" is not a URL`,
	} {
		_, err := config.Open(address, config.OpenConfig{Drivers: drivers})
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("Open(%s) = %v, want %s", address, err, want)
		}
	}
}

// TestOpenCountsProblems checks that every store that config.Open returns reports the number of its
// problems. Stores with the same name are reported together.
func TestOpenCountsProblems(t *testing.T) {
	t.Parallel()
	reg, dir := prometheus.NewRegistry(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(workload("a", "no address!")), 0o600))
	_, err := config.Open("memory://a", config.OpenConfig{Drivers: drivers, Registerer: reg})
	must(t, err)
	for range 2 {
		s, err := config.Open("fs://"+dir, config.OpenConfig{Drivers: drivers, Registerer: reg})
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		<-s.Synced()
		cancel()
		must(t, <-done)
	}
	want := "# HELP outrigger_control_config_problems Current problems of configuration objects of a store.\n" +
		"# TYPE outrigger_control_config_problems gauge\n" +
		"outrigger_control_config_problems{store=\"fs://" + dir + "\"} 2\n" +
		"outrigger_control_config_problems{store=\"memory://a\"} 0\n"
	must(t, testutil.GatherAndCompare(reg, strings.NewReader(want), "outrigger_control_config_problems"))
}

// TestOpenCountsEvents checks that every store that config.Open returns counts its events.
func TestOpenCountsEvents(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	s, err := config.Open("memory://a", config.OpenConfig{Drivers: drivers, Registerer: reg})
	must(t, err)
	objects, _ := codec.Decode("", []byte(workload("a", "10.0.0.1")))
	_, err = s.Create(t.Context(), objects[0])
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	<-s.Synced()
	cancel()
	must(t, <-done)
	const want = "# HELP outrigger_control_config_events_total Changes of configuration objects that a store reported, by kind and by event: add, update or delete.\n" +
		"# TYPE outrigger_control_config_events_total counter\n" +
		"outrigger_control_config_events_total{event=\"add\",kind=\"WorkloadEntry\",store=\"memory://a\"} 1\n"
	must(t, testutil.GatherAndCompare(reg, strings.NewReader(want), "outrigger_control_config_events_total"))
	problems, err := testutil.GatherAndLint(reg, "outrigger_control_config_events_total") // the other name is Istio's
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint: got %v, error %v", problems, err)
	}
}

func TestAggregate(t *testing.T) {
	t.Parallel()
	var stores []config.Store
	var dirs []string
	for _, content := range []string{
		workload("both", "10.0.0.1") + workload("z-first", "10.0.0.2"),
		workload("both", "10.0.0.3") + workload("a-second", "10.0.0.4"),
	} {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, "x.yaml"), []byte(content), 0o600))
		s, err := file.New(file.Config{Dir: dir})
		must(t, err)
		stores, dirs = append(stores, s), append(dirs, dir)
	}
	a := config.NewAggregate(nil, stores...)
	changes := make(chan model.Change, 10)
	a.RegisterEventHandler(func(e []config.Event) { changes <- config.Change(e) })
	if a.HasSynced() {
		t.Error("HasSynced() = true before Run")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	heard := model.Change{}
	for len(heard.Keys) < 3 {
		heard = heard.Merge(<-changes)
	}
	var names []string
	for _, c := range a.List(model.WorkloadEntry, "") {
		names = append(names, c.Name+" "+c.Spec.(*networkingv1alpha3.WorkloadEntry).GetAddress())
	}
	if got := strings.Join(names, ","); got != "a-second 10.0.0.4,both 10.0.0.1,z-first 10.0.0.2" {
		t.Errorf("List returned %s", got)
	}
	key := model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: "both"}
	if c := a.Get(key); c == nil || c.Spec.(*networkingv1alpha3.WorkloadEntry).GetAddress() != "10.0.0.1" {
		t.Errorf("Get() = %v, want the object of the first store", c)
	}
	problems := a.Problems()
	if len(problems) != 1 || !strings.Contains(problems[0].String(), dirs[1]+"/x.yaml:1: WorkloadEntry/default/both: the same object is in "+dirs[0]) {
		t.Errorf("problems: got %v, want that both are the same object", problems)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}

// TestOpenErrorsOmitPassword checks that errors do not contain a password that a user put into the
// URL.
func TestOpenErrorsOmitPassword(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"etcd://me:secret@host:23\x7f79/", "etcd://me:secret@[::1/", "what://me:secret@host/", "://me:secret@host", "fs://me:secret@host/x",
	} {
		_, err := config.Open(address, config.OpenConfig{Drivers: drivers})
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("Open(%q) = %v, want an error without the password", address, err)
		}
	}
}
