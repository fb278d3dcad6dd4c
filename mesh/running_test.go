// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestRunning(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	// The file of a killed run is not locked; a link leads elsewhere.
	stale := filepath.Join(temp, runningPrefix+"stale")
	if err := os.WriteFile(stale, []byte("fs:///stale"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(stale, filepath.Join(temp, runningPrefix+"link")); err != nil {
		t.Fatal(err)
	}
	withdraw, err := announce(temp, "fs:///one", "127.77.51.9:15014", "/state/one", IsolateNetns, "/shop/mesh.yaml", "4711")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Running(temp)
	if err != nil || !slices.Equal(got, []string{"fs:///one"}) {
		t.Errorf("Running returned %q, %v", got, err)
	}
	for store, want := range map[string]string{"fs:///one": "/state/one", "fs:///two": ""} {
		if got, err := RunningState(temp, store); err != nil || got != want {
			t.Errorf("the state of %s is in %q, %v", store, got, err)
		}
	}
	for store, want := range map[string]string{"fs:///one": "127.77.51.9:15014", "fs:///two": ""} {
		if got, err := RunningControl(temp, store); err != nil || got != want {
			t.Errorf("the control plane of %s is %q, %v", store, got, err)
		}
	}
	for control, want := range map[string]string{"127.77.51.9:15014": "fs:///one", "127.77.51.11:15014": ""} {
		if got, err := RunningStore(temp, control); err != nil || got != want {
			t.Errorf("the store of %s is %q, %v", control, got, err)
		}
	}
	for control, want := range map[string]string{"127.77.51.9:15014": IsolateNetns, "127.77.51.11:15014": ""} {
		if got, err := RunningIsolation(temp, control); err != nil || got != want {
			t.Errorf("the isolation of %s is %q, %v", control, got, err)
		}
	}
	for control, want := range map[string]string{"127.77.51.9:15014": "/shop/mesh.yaml 4711", "127.77.51.11:15014": " "} {
		if file, process, err := RunningFile(temp, control); err != nil || file+" "+process != want {
			t.Errorf("the mesh of %s is %q of process %s, %v", control, file, process, err)
		}
	}
	if logs, err := RunningLogs(temp, "127.77.51.11:15014"); err != nil || len(logs) > 0 {
		t.Errorf("the logs of no mesh are %q, %v", logs, err)
	}
	// A mesh without a config directory also has a control plane.
	alone, err := announce(temp, "", "127.77.51.10:15014", "/state/two", IsolateNone)
	if err != nil {
		t.Fatal(err)
	}
	controls, err := RunningControls(temp)
	slices.Sort(controls)
	if err != nil || !slices.Equal(controls, []string{"127.77.51.10:15014", "127.77.51.9:15014"}) {
		t.Errorf("RunningControls returned %q, %v", controls, err)
	}
	if got, err := Running(temp); err != nil || !slices.Equal(got, []string{"fs:///one"}) {
		t.Errorf("with a second mesh, Running returned %q, %v", got, err)
	}
	if err := alone(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(stale); !os.IsNotExist(err) {
		t.Errorf("the file of a killed run is still there: %v", err)
	}
	if err := withdraw(); err != nil {
		t.Error(err)
	}
	if got, err := Running(temp); err != nil || len(got) > 0 {
		t.Errorf("after the end Running gives %q, %v", got, err)
	}
	if _, err := announce(filepath.Join(temp, "missing"), "x", "y", "z", ""); err == nil {
		t.Error("announced in a directory that does not exist")
	}
}

// TestRunningLogs checks that the logs of applications are none of those of a mesh, and finds its proxies.
func TestRunningLogs(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	for _, name := range []string{"log/control.log", "log/web.log", "log/web-agent.log", "log/db-agent.log", "log/db-agent-agent.log", "workloads/web/x", "workloads/db-agent/x"} {
		path := filepath.Join(temp, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	withdraw, err := announce(temp, "", "127.77.51.12:15014", filepath.Join(temp, "control", "config"), "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = withdraw() }() // the directory is temporary
	logs, err := RunningLogs(temp, "127.77.51.12:15014")
	want := []string{filepath.Join(temp, "log/control.log"), filepath.Join(temp, "log/db-agent-agent.log"), filepath.Join(temp, "log/web-agent.log")}
	if err != nil || !slices.Equal(logs, want) {
		t.Errorf("got %q, %v", logs, err)
	}
	if err := os.WriteFile(filepath.Join(temp, proxiesFile), []byte("web shop 127.77.51.13\ndb shop 127.77.51.14\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for control, want := range map[string][]Located{"127.77.51.12:15014": {{"web", "shop", "127.77.51.13"}, {"db", "shop", "127.77.51.14"}}, "127.77.51.13:15014": nil} {
		if got, err := RunningProxies(temp, control); err != nil || !slices.Equal(got, want) {
			t.Errorf("the proxies of %s are %v, %v, want %v", control, got, err, want)
		}
	}
}
