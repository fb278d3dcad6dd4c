// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// rejectedNetwork are the first bytes of the addresses of this test.
const rejectedNetwork = "127.1.11."

// smallRegex lowers Envoy's limit of regular expressions, as an operator may do to limit their
// cost. Validation uses Envoy's default limit.
const smallRegex = `network: 127.1.11.0/24
mesh: {defaultConfig: {runtimeValues: {re2.max_program_size.error_level: "100"}}}
`

// tooLarge is a route that validation accepts, and Envoy with smallRegex rejects.
const tooLarge = `  http:
  - name: too-large
    match: [{uri: {regex: "/[a-z]{200}"}}]
    route: [{destination: {host: catalog, subset: v2}}]
`

// other is a VirtualService that has nothing to do with the one that is rejected.
const other = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: orders, namespace: default}
spec:
  hosts: [orders]
  http: [{directResponse: {status: 418}}]
`

// TestRejected sends a VirtualService that Envoy rejects to a mesh under load: one proxy of each
// identity receives it, the others do not, no request fails, other changes take effect, and within
// 2 s the status of the object and the tool contain the error. The correction removes it.
func TestRejected(t *testing.T) {
	s := newExample(t, "shop")
	s.edit("mesh.yaml", "config: config\n", smallRegex+"config: config\n")
	s.start()
	s.waitFor("Ctrl-C ends it", time.Minute)
	load := s.loadOf(t, 200)
	load.atLeast(t, 200) // traffic flows
	s.wantSaid(t, 2*time.Minute, `"reason":"Acknowledged"`)

	file := s.read("catalog.yaml")
	began := time.Now()
	s.write("catalog.yaml", strings.Replace(file, "  http:\n", tooLarge, 1))
	s.wantSaid(t, 2*time.Minute, `"reason":"Rejected"`, "program size of", "set for the error level threshold")
	t.Logf("the status names what Envoy says %s after the change", time.Since(began))
	if took := time.Since(began); took > time.Minute {
		t.Errorf("the status names what Envoy says after %s, want seconds", took)
	}
	eventually(t, time.Minute, func() string { // logs of proxies may come after the status
		if n := len(s.triedBy()); n < 3 {
			<-time.After(10 * time.Millisecond)
			return fmt.Sprintf("%d proxies have tried the change", n)
		}
		return ""
	})
	first := s.triedBy()
	if slices.Contains(first, "catalog-v1") && slices.Contains(first, "catalog-v2") {
		t.Errorf("the change was tried by %v, want one proxy of each identity", first)
	}
	for _, call := range []struct {
		args []string
		want []string
	}{
		{[]string{"describe", "vs", "catalog", "--store", "fs://" + filepath.Join(s.dir, "config")}, []string{"Rejected", "program size of"}},
		{[]string{"explain", "vs/catalog"}, []string{"3 have rejected it", "1 has not received it", "program size of", "the last good version stays in force"}},
		{[]string{"status"}, []string{"REJECTED", "HELD BACK", "program size of"}},
	} {
		out, err := s.tool(call.args...)
		if fails := call.args[0] != "describe"; (err != nil) != fails {
			t.Errorf("%v: %v: %s", call.args, err, out)
		}
		wantAll(t, call.args[0], out, call.want)
	}

	// Unrelated changes go to all.
	began = time.Now()
	s.write("orders.yaml", other)
	for _, address := range s.addresses() {
		client := throughProxy(t, address)
		eventually(t, time.Minute, func() string {
			code, _, _, err := get(t.Context(), client, "http://orders:8080/", nil)
			if err == nil && code == http.StatusTeapot {
				return ""
			}
			return fmt.Sprintf("orders answers %d, %v through %s; want 418 by the new file", code, err, address)
		})
	}
	t.Logf("another change counts in all proxies after %s", time.Since(began))
	load.atLeast(t, 200)
	if now := s.triedBy(); fmt.Sprint(now) != fmt.Sprint(first) {
		t.Errorf("after another change it was tried by %v, before by %v", now, first)
	}

	began = time.Now()
	s.write("catalog.yaml", strings.NewReplacer("weight: 90", "weight: 0", "weight: 10", "weight: 100").Replace(file))
	s.wantSaid(t, 2*time.Minute, `"reason":"Acknowledged"`)
	t.Logf("the status says %s after the correction that all have it", time.Since(began))
	eventually(t, time.Minute, func() string {
		out, err := s.tool("status")
		if err != nil || strings.Contains(out, "REJECTED") || strings.Contains(out, "HELD BACK") || !strings.Contains(out, "4 proxies: all have what they were sent.") {
			return fmt.Sprintf("after the correction, %v: %s", err, out)
		}
		return ""
	})
	client := throughProxy(t, rejectedNetwork+"2")
	for range 30 {
		if code, _, version, err := get(t.Context(), client, catalog, nil); err != nil || code != http.StatusOK || version != "v2" {
			t.Fatalf("after the correction the catalog answers %d %s, %v; want v2", code, version, err)
		}
	}
	total, failed := load.stop()
	if len(failed) > 0 {
		t.Errorf("%d of %d requests failed, the first one with %s", len(failed), total, failed[0])
	}
	t.Logf("%d requests, %d failed", total, len(failed))
}

// addresses are those of the four workloads.
func (s *shop) addresses() []string {
	var out []string
	for i := 2; i <= 5; i++ {
		out = append(out, rejectedNetwork+strconv.Itoa(i))
	}
	return out
}

// loadOf is like startLoad, through the first workload of this test.
func (s *shop) loadOf(t *testing.T, perSecond int) *load {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	l := &load{cancel: cancel}
	t.Cleanup(cancel)
	client := throughProxy(t, rejectedNetwork+"2")
	l.done.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for {
			// Cases: the end; the next request.
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			l.done.Go(func() {
				code, body, _, err := get(t.Context(), client, catalog, nil)
				if l.total.Add(1); err == nil && code == http.StatusOK {
					return
				}
				l.mu.Lock()
				defer l.mu.Unlock()
				l.failed = append(l.failed, fmt.Sprintf("%d, %v: %s", code, err, body))
			})
		}
	})
	return l
}

// wantSaid waits until the status of the VirtualService contains the texts.
func (s *shop) wantSaid(t *testing.T, limit time.Duration, want ...string) {
	t.Helper()
	eventually(t, limit, func() string {
		<-time.After(5 * time.Millisecond) // others need the machine, too
		said := s.said(t)
		for _, text := range want {
			if !strings.Contains(said, text) {
				return fmt.Sprintf("the status lacks %q: %s", text, said)
			}
		}
		return ""
	})
}

// said returns the status of the VirtualService in the store.
func (s *shop) said(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(filepath.Join(s.stateDir(), "control", "config"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.Contains(strings.ToLower(path), "virtualservice") || !strings.Contains(path, "catalog") {
			return nil // it comes with the first status
		}
		b, err := os.ReadFile(path)
		all.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

// refusal matches a log line with a rejection by Envoy.
var refusal = regexp.MustCompile(`(?m)^(\S+) +agent +\| envoy config .* rejected: .*program size of`)

// triedBy returns the workloads whose Envoys have rejected the change.
func (s *shop) triedBy() (out []string) {
	for _, m := range refusal.FindAllStringSubmatch(s.out.String(), -1) {
		if !slices.Contains(out, m[1]) {
			out = append(out, m[1])
		}
	}
	return out
}

// tool runs a command of the tool, and returns its output.
func (s *shop) tool(args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(s.bin, "outrigger"), args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+s.tmp, "HOME="+s.home)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func wantAll(t *testing.T, what, text string, want []string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("%s does not say %q:\n%s", what, w, text)
		}
	}
}
