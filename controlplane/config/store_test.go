// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func TestOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	reg := prometheus.NewRegistry()
	for range 2 { // stores share their metrics
		if _, err := Open("fs://"+dir, OpenConfig{Registerer: reg}); err != nil {
			t.Fatal(err)
		}
	}
	for address, want := range map[string]string{
		"etcd://host:2379/x": `config source "etcd://host:2379/x" has the scheme "etcd", which this version does not serve: write fs:///directory`,
		"fs://etc/config":    `config source "fs://etc/config" names the host "etc": write three slashes, fs:///etc/config`,
		"fs://":              `config source "fs://" names no directory: write fs:///directory`,
		"/etc/config":        `config source "/etc/config" has no scheme: write fs:///etc/config`,
		"fs:///does/not":     "open config directory: stat /does/not: no such file or directory",
		"::":                 `config source "::" is no URL`,
	} {
		_, err := Open(address, OpenConfig{})
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("Open(%s): %v, want %s", address, err, want)
		}
	}
}

func TestAggregate(t *testing.T) {
	t.Parallel()
	var stores []Store
	var dirs []string
	for _, content := range []string{
		workload("both", "10.0.0.1") + workload("z-first", "10.0.0.2"),
		workload("both", "10.0.0.3") + workload("a-second", "10.0.0.4"),
	} {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, "x.yaml"), []byte(content), 0o600))
		s, err := NewFileStore(FileConfig{Dir: dir})
		must(t, err)
		stores, dirs = append(stores, s), append(dirs, dir)
	}
	a := NewAggregate(stores...)
	changes := make(chan model.Change, 10)
	a.RegisterEventHandler(func(c model.Change) { changes <- c })
	if a.HasSynced() {
		t.Error("synced before Run")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	for range stores {
		if c := <-changes; !c.All {
			t.Errorf("the first change is %v", c)
		}
	}
	var names []string
	for _, c := range a.List(model.WorkloadEntry, "") {
		names = append(names, c.Name+" "+c.Spec.(*networkingv1alpha3.WorkloadEntry).GetAddress())
	}
	if got := strings.Join(names, ","); got != "a-second 10.0.0.4,both 10.0.0.1,z-first 10.0.0.2" {
		t.Errorf("List gives %s", got)
	}
	key := model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: "both"}
	if c := a.Get(key); c == nil || c.Spec.(*networkingv1alpha3.WorkloadEntry).GetAddress() != "10.0.0.1" {
		t.Errorf("Get gives %v", c)
	}
	problems := a.Problems()
	if len(problems) != 1 || !strings.Contains(problems[0].String(), dirs[1]+"/x.yaml:1: WorkloadEntry/default/both: the same object stands in "+dirs[0]) {
		t.Errorf("problems: %v", problems)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}
