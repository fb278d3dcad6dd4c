// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoytest

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// startTimeout is how long Envoy may take until its listeners are there.
const startTimeout = 2 * time.Minute

// Start runs an Envoy with a bootstrap until the test ends. It returns the address of its admin port and
// those of the listeners with the given names, as soon as they are there.
func Start(t testing.TB, bootstrap string, listeners ...string) (admin string, addresses map[string]string) {
	t.Helper()
	dir := t.TempDir()
	config, file := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin")
	if err := os.WriteFile(config, []byte(bootstrap), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, Binary(t), "-c", config, "--admin-address-path", file, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warn")
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("Envoy wrote:\n%s", output.String())
		}
	})
	for end := time.Now().Add(startTimeout); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		text, err := os.ReadFile(file)
		if admin = string(text); err != nil || admin == "" {
			continue
		}
		if addresses = listening(ctx, admin); has(addresses, listeners) {
			return admin, addresses
		}
	}
	t.Fatalf("Envoy has the listeners %v, want %v", addresses, listeners)
	return "", nil
}

// listening returns the addresses of Envoy's listeners by their names.
func listening(ctx context.Context, admin string) map[string]string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/listeners", nil)
	if err != nil {
		return nil
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return nil
	}
	defer func() { _ = resp.Body.Close() }() // read-only: closing cannot lose data
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil
	}
	addresses := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, address, _ := strings.Cut(strings.TrimSpace(line), "::")
		addresses[name] = address
	}
	return addresses
}

func has(addresses map[string]string, names []string) bool {
	for _, name := range names {
		if addresses[name] == "" {
			return false
		}
	}
	return true
}
