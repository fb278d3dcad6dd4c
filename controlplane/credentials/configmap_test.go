// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package credentials

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// rootsOf returns the roots of the ConfigMap ns/name, or the error.
func rootsOf(m RootMaps, name string) string {
	ref, err := ParseReference("configmap://ns/"+name+"-cacert", "other")
	if err != nil {
		return err.Error()
	}
	r, err := RootsOf(m, ref)
	if err != nil {
		return err.Error()
	}
	return string(r.PEM)
}

func TestRootMaps(t *testing.T) {
	t.Parallel()
	m, err := NewRootMaps(false, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	changes := 0
	m.OnChange(func(namespace, name string) {
		if namespace == "ns" && name == "a" {
			changes++
		}
	})
	a, b := string(certificate(t, time.Hour).cert), string(certificate(t, time.Hour).cert)
	for i, step := range []struct {
		do     func()
		want   string
		change int
	}{
		{func() {}, ErrLoading.Error(), 0},
		{func() { m.Gone("ns", "a") }, "there is no ConfigMap ns/a", 1},
		{func() { m.Set("ns", "a", map[string]string{"other": a}) }, "has no key ca.crt", 1},
		{func() { m.Set("ns", "a", map[string]string{"ca.crt": "rubbish"}) }, "ca.crt: ", 1},
		{func() { m.Set("ns", "a", map[string]string{"ca.crt": a}) }, a, 1},
		{func() { m.Set("ns", "a", map[string]string{"ca.crt": a}) }, a, 0},
		{func() { m.Set("ns", "a", map[string]string{"ca.crt": "rubbish"}) }, a, 0}, // the last valid roots stay
		{func() { m.Set("ns", "a", map[string]string{"ca.crt": b}) }, b, 1},
		{func() { m.Set("ns", "a", nil) }, "has no key ca.crt", 1},
		{func() { m.Delete("ns", "a") }, ErrLoading.Error(), 1},
	} {
		before := changes
		step.do()
		if got := rootsOf(m, "a"); !strings.Contains(got, step.want) || changes-before != step.change {
			t.Errorf("step %d: the roots are %q after %d changes, want %q and %d", i, got, changes-before, step.want, step.change)
		}
	}
	// A ConfigMap x-cacert is no part of x.
	m.Set("ns", "a", map[string]string{"ca.crt": a})
	if got := rootsOf(m, "a-cacert"); !strings.Contains(got, ErrLoading.Error()) {
		t.Errorf("the roots of a-cacert are %q", got)
	}
	if _, err := ParseReference("configmap://a", "ns"); err == nil {
		t.Error("a ConfigMap without namespace is accepted")
	}
}

// TestFileRootMaps checks that files contain ConfigMaps beside Secrets of the same name, and that a
// file that others may write is refused.
func TestFileRootMaps(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pair := certificate(t, time.Hour)
	root := strings.ReplaceAll("\n"+strings.TrimSpace(string(pair.cert)), "\n", "\n    ")
	text := func(name string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: ns}\ndata:\n  unused: x\n  ca.crt: |%s\n", name, root)
	}
	put(t, filepath.Join(dir, "maps.yaml"), text("a")+"---\n"+text("b"), 0o644)
	put(t, filepath.Join(dir, "open.yaml"), text("open"), 0o664)
	put(t, filepath.Join(dir, "secret.yaml"), secretYAML("a", pair), 0o600)
	put(t, filepath.Join(dir, "mixed.yaml"), secretYAML("mixed", pair)+"---\n"+text("mixed"), 0o644)
	s, log := follow(t, dir)
	for name, want := range map[string]string{"a": "BEGIN CERTIFICATE", "b": "BEGIN CERTIFICATE", "open": "there is no ConfigMap", "mixed": "there is no ConfigMap"} {
		if got := rootsOf(s.Maps, name); !strings.Contains(got, want) {
			t.Errorf("the roots of %s are %q, want %q", name, got, want)
		}
	}
	if _, err := s.Get("ns", "a"); err != nil {
		t.Errorf("the Secret beside a ConfigMap of its name: %v", err)
	}
	if _, err := s.Get("ns", "b"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a ConfigMap is a Secret: %v", err)
	}
	if !strings.Contains(log.String(), "may change the roots") {
		t.Errorf("the log does not name the mode: %s", log)
	}
	if err := os.Remove(filepath.Join(dir, "maps.yaml")); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(2 * time.Minute); !strings.Contains(rootsOf(s.Maps, "a"), "there is no ConfigMap"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a ConfigMap outlives its file")
		}
	}
}
