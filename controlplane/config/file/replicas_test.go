// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1alpha1 "istio.io/api/meta/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
)

// TestReplicasShareStatus runs two replicas with the same objects, the same directory for status,
// and a state directory each. A status that one writes must be visible to both, and an outdated
// write must be a conflict.
func TestReplicasShareStatus(t *testing.T) {
	t.Parallel()
	dir, status := t.TempDir(), filepath.Join(t.TempDir(), "status")
	must(t, os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(workload("a", "10.0.0.1")), 0o644))
	replica := func() config.Store {
		s, err := config.Open("fs://"+dir+"?status="+status, config.OpenConfig{Drivers: drivers, State: t.TempDir(), Keep: true})
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		t.Cleanup(func() { cancel(); must(t, <-done) })
		<-s.Synced()
		return s
	}
	one, two := replica(), replica()
	key := defaultKey("a")
	says := func(s config.Store) string {
		st, _ := s.Get(key).Status.(*metav1alpha1.IstioStatus)
		if st == nil || len(st.Conditions) == 0 {
			return ""
		}
		return st.Conditions[0].Reason
	}
	until := func(s config.Store, reason string) {
		t.Helper()
		for deadline := time.Now().Add(2 * time.Minute); says(s) != reason; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("status in the other replica: got %q, want %q", says(s), reason)
			}
		}
	}
	write := func(s config.Store, version, reason string) error {
		c := s.Get(key).Clone()
		c.ResourceVersion = version
		c.Status = &metav1alpha1.IstioStatus{Conditions: []*metav1alpha1.IstioCondition{{Type: "Reconciled", Reason: reason}}}
		_, err := s.UpdateStatus(t.Context(), c)
		return err
	}
	old := two.Get(key).ResourceVersion
	must(t, write(one, old, "One"))
	if err := write(two, old, "Two"); !errors.Is(err, config.ErrConflict) {
		t.Errorf("an outdated write: got error %v, want a conflict", err)
	}
	until(two, "One")
	must(t, write(two, two.Get(key).ResourceVersion, "Two"))
	until(one, "Two")
	if later := replica(); says(later) != "Two" {
		t.Errorf("status in a replica that starts later: got %q, want Two", says(later))
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("directory of the objects: got %v, error %v; want one file", entries, err)
	}
}

func TestOpenStatus(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for parameters, want := range map[string]string{
		"?status=x":                           "status=x is not one absolute path",
		"?status=/x&status=/y":                "status=/x,/y is not one absolute path",
		"?status=" + dir:                      "below the directory of the objects",
		"?status=" + dir + "/status&links=/x": "below the directory of the objects",
		"?status=" + dir + "-status&links=/":  "",
	} {
		_, err := config.Open("fs://"+dir+parameters, config.OpenConfig{Drivers: drivers})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("open with %q = %v, want %q", parameters, err, want)
		}
	}
}
