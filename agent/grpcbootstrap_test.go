// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWriteGRPCBootstrap(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "new", "grpc.json")
	cfg, _, err := resolve(t.Context(), testSources(nil, "GRPC_XDS_BOOTSTRAP="+path))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // a second start replaces it
		if err := writeGRPCBootstrap(cfg, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]fs.FileMode{path: 0o644, filepath.Dir(path): 0o700} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "new", "*")); err != nil || len(left) != 1 {
		t.Errorf("files: %q, %v", left, err)
	}
	var doc struct {
		Servers []struct {
			URI string `json:"server_uri"`
		} `json:"xds_servers"`
		Node struct {
			ID string `json:"id"`
		} `json:"node"`
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &doc); err != nil || doc.Node.ID != cfg.node.String() {
		t.Errorf("%s: %v", data, err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if want := "unix://" + here + "/etc/istio/proxy/XDS"; len(doc.Servers) != 1 || doc.Servers[0].URI != want {
		t.Errorf("servers %v, want %s", doc.Servers, want)
	}
}

// TestWriteGRPCBootstrapFails checks that a failed write is an error if the file was requested. An
// empty path turns the file off.
func TestWriteGRPCBootstrapFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	write := func(path string) (string, error) {
		cfg, _, err := resolve(t.Context(), testSources(nil, "GRPC_XDS_BOOTSTRAP="+path))
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err = writeGRPCBootstrap(cfg, slog.New(slog.NewTextHandler(&out, nil)))
		return out.String(), err
	}
	if _, err := write(filepath.Join(dir, "file", "x")); err == nil || !strings.Contains(err.Error(), "environment variable GRPC_XDS_BOOTSTRAP: mkdir "+dir+"/file: not a directory") {
		t.Errorf("error %v", err)
	}
	if log, err := write(""); err != nil || log != "" {
		t.Errorf("turned off: %v, %s", err, log)
	}
}
