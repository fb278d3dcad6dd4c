// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// from are the revisions whose programs TestUpgrades builds and mixes with those of this one.
var from = flag.String("from", "", "revisions for TestUpgrades, separated by commas; the newest older one of scripts/older if empty")

// olderRevisions returns the revisions to upgrade from. It skips the test, and prints why, where the
// history of the repository is missing.
func olderRevisions(t *testing.T) []string {
	t.Helper()
	if *from != "" {
		return strings.Split(*from, ",")
	}
	var reason bytes.Buffer
	cmd := exec.CommandContext(t.Context(), filepath.Join(repository(t), "scripts", "older"), "list", "1")
	cmd.Stderr = &reason
	out, err := cmd.Output()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) && failed.ExitCode() == 3 {
		fmt.Printf("== %s is left out: %s", t.Name(), &reason)
		t.Skip(&reason)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, &reason)
	}
	return strings.Fields(string(out))
}

// TestUpgrades runs the shop with programs of this revision and of older ones. Agents of both use a
// control plane of each; the control plane is downgraded and upgraded under load, and keeps its
// authority, last good objects and history; agents are downgraded and upgraded while the control
// plane does not respond, and use the last good configuration and the identity of each other.
func TestUpgrades(t *testing.T) {
	for _, revision := range olderRevisions(t) {
		t.Run(revision[:min(len(revision), 12)], func(t *testing.T) {
			u := newUpgrade(t, revision)
			u.start()
			u.waitFor("Ctrl-C ends it", 2*time.Minute)
			u.control = u.newer
			u.steps(t)
		})
	}
}

// upgrade is a shop with programs of two revisions.
type upgrade struct {
	*shop
	newer, older string // the directories of the programs
	control      string // that of the control plane that runs
}

func newUpgrade(t *testing.T, revision string) *upgrade {
	t.Helper()
	u := &upgrade{shop: newShop(t), newer: filepath.Join(repository(t), "bin"), older: filepath.Join(t.TempDir(), "older")}
	began := time.Now()
	if out, err := exec.CommandContext(t.Context(), filepath.Join(repository(t), "scripts", "older"), "build", revision, u.older).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", revision, err, out)
	}
	t.Logf("built in %s", time.Since(began).Round(time.Second))
	// Certificates are renewed after at most a tenth of their life.
	script := "#!/bin/sh\nSECRET_TTL=2m SECRET_GRACE_PERIOD_RATIO=0.9999 exec " + u.bin + "/$POD_NAME/outrigger-agent \"$@\"\n"
	program := filepath.Join(u.bin, "outrigger-agent")
	if err := errors.Join(os.Remove(program), os.WriteFile(program, []byte(script), 0o755)); err != nil {
		t.Fatal(err)
	}
	u.agents(map[string]string{"frontend": u.older, "catalog-v1": u.older, "catalog-v2": u.newer, "orders": u.newer})
	return u
}

// agents sets the agents that the workloads have from their next start on.
func (u *upgrade) agents(of map[string]string) {
	u.t.Helper()
	for workload, programs := range of {
		u.link(filepath.Join(workload, "outrigger-agent"), programs)
	}
}

// link makes a program of the mesh one of a directory.
func (u *upgrade) link(name, programs string) {
	u.t.Helper()
	path := filepath.Join(u.bin, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.RemoveAll(path), os.Symlink(filepath.Join(programs, filepath.Base(name)), path)); err != nil {
		u.t.Fatal(err)
	}
}

func (u *upgrade) steps(t *testing.T) {
	addresses := []string{frontend, catalogV1, catalogV2, orders}
	serials := map[string]string{}
	for _, address := range addresses {
		serials[address] = serialOf(t, address)
	}
	t.Run("newer control plane", u.works)
	root := u.root(t)
	load := startLoad(t, 100)
	t.Run("downgraded control plane", func(t *testing.T) { u.replaceControl(t, u.older) })
	t.Run("older control plane", u.works)
	t.Run("upgraded control plane", func(t *testing.T) { u.replaceControl(t, u.newer) })
	t.Run("newer control plane again", u.works)
	for _, address := range addresses {
		eventually(t, 2*time.Minute, func() string {
			if serialOf(t, address) != serials[address] {
				return ""
			}
			<-time.After(20 * time.Millisecond) // the load sets the pace
			return "the Envoy of " + address + " still has its first certificate"
		})
	}
	total, failed := load.stop()
	if len(failed) > 0 {
		t.Errorf("%d of %d requests failed while the control plane was replaced twice, first: %s", len(failed), total, failed[0])
	}
	t.Logf("%d requests, %d failed", total, len(failed))
	u.agents(map[string]string{"frontend": u.newer, "catalog-v1": u.newer, "catalog-v2": u.older, "orders": u.older})
	t.Run("agents replaced in an outage", u.replaceAgents)
	t.Run("replaced agents", u.works)
	u.replaceControl(t, u.older)
	t.Run("replaced agents, older control plane", u.works)
	if after := u.root(t); after != root {
		t.Errorf("the root was\n%s\nand is\n%s", root, after)
	}
}

// works checks what a mesh must do: mutual TLS between all workloads, changes in force, statuses
// with the tools of both revisions.
func (u *upgrade) works(t *testing.T) {
	u.strict(t)
	for weight, version := range map[string]string{"0": "v1", "100": "v2"} {
		u.split(t, weight)
		for _, caller := range []string{frontend, orders} {
			u.reaches(t, caller, version)
		}
	}
	for _, programs := range []string{u.newer, u.older} {
		eventually(t, 2*time.Minute, func() string {
			out, err := u.toolOf(programs, "status")
			for _, workload := range []string{"frontend", "catalog-v1", "catalog-v2", "orders"} {
				if err != nil || !strings.Contains(out, workload) {
					return fmt.Sprintf("status of %s without %s: %v\n%s", programs, workload, err, out)
				}
			}
			return ""
		})
	}
}

// split writes a VirtualService in which version 2 has a weight.
func (u *upgrade) split(t *testing.T, weight string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository(t), "examples", "shop", "config", "catalog.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	other := map[string]string{"0": "100", "100": "0"}[weight]
	u.write("catalog.yaml", strings.NewReplacer("weight: 90", "weight: "+other, "weight: 10", "weight: "+weight).Replace(string(text)))
}

// reaches waits until requests of a caller arrive at one version only, with its identity.
func (u *upgrade) reaches(t *testing.T, caller, version string) {
	t.Helper()
	account := map[string]string{frontend: "sa/frontend", orders: "sa/orders"}[caller]
	client := throughProxy(t, caller)
	eventually(t, 2*time.Minute, func() string {
		for range 20 {
			code, body, got, err := get(t.Context(), client, catalog, nil)
			if err != nil || code != http.StatusOK || got != version || !strings.Contains(body, account) {
				return fmt.Sprintf("%s gets %d, %v, want %s for %s: %s", caller, code, err, version, account, body)
			}
		}
		return ""
	})
}

// replaceControl replaces the control plane while a file is invalid: the last good object stays.
func (u *upgrade) replaceControl(t *testing.T, programs string) {
	t.Helper()
	u.split(t, "100")
	u.reaches(t, frontend, "v2")
	versions := u.history(t)
	good := u.read("catalog.yaml")
	u.write("catalog.yaml", strings.Replace(good, "weight: 100", "weight: -100", 1))
	u.waitFor("the last good version stays in force", 2*time.Minute)
	u.link("outrigger-control", programs)
	kill(t, u.find("outrigger-control", ""))
	u.waitFor("the control plane is ready again", 2*time.Minute)
	u.control = programs
	for _, caller := range []string{frontend, orders} {
		u.reaches(t, caller, "v2")
	}
	if out, err := u.toolOf(programs, "get", "vs", "catalog", "-o", "yaml"); err != nil || !strings.Contains(out, "weight: 100") {
		t.Errorf("the last good object is lost: %v\n%s", err, out)
	}
	after := u.history(t)
	for _, version := range versions {
		if !slices.Contains(after, version) {
			t.Errorf("the history has lost %q:\n%s", version, strings.Join(after, "\n"))
		}
	}
	u.write("catalog.yaml", good)
	u.waitFor("fixed: ", 2*time.Minute)
}

// replaceAgents ends each Envoy, and with it the agent, while the control plane does not respond.
func (u *upgrade) replaceAgents(t *testing.T) {
	u.split(t, "100")
	for _, caller := range []string{frontend, orders} {
		u.reaches(t, caller, "v2")
	}
	control := u.find("outrigger-control", "")
	if err := syscall.Kill(control.pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Kill(control.pid, syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	}()
	for _, workload := range []string{"catalog-v1", "catalog-v2", "frontend", "orders"} {
		kill(t, u.find("envoy", workload))
		u.waitFor(workload+": the agent exited with code", 2*time.Minute)
	}
	for _, caller := range []string{frontend, orders} {
		u.reaches(t, caller, "v2")
	}
}

// toolOf runs the tool of one of the revisions.
func (u *upgrade) toolOf(programs string, args ...string) (string, error) {
	cmd := exec.CommandContext(u.t.Context(), filepath.Join(programs, "outrigger"), args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+u.tmp, "HOME="+u.home)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// history returns the versions of the VirtualService that the control plane has: time, object, change
// and revision.
func (u *upgrade) history(t *testing.T) (versions []string) {
	t.Helper()
	out, err := u.toolOf(u.control, "history", "vs/catalog")
	for line := range strings.Lines(out) {
		if columns := strings.Fields(line); slices.Contains(columns, "vs/catalog.default") {
			versions = append(versions, strings.Join(columns[:4], " "))
		}
	}
	if err != nil || len(versions) == 0 {
		t.Errorf("history: %v\n%s", err, out)
	}
	return versions
}

func (u *upgrade) root(t *testing.T) string {
	t.Helper()
	root, err := os.ReadFile(filepath.Join(u.stateDir(), "control", "ca", "root-cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return string(root)
}

// serialOf returns the serial number of the certificate that an Envoy uses.
func serialOf(t *testing.T, address string) string {
	t.Helper()
	resp, err := http.Get("http://" + address + ":15000/certs")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // read-only
	body, err := io.ReadAll(resp.Body)
	var certs struct {
		Certificates []struct {
			Chain []struct {
				Serial string `json:"serial_number"`
			} `json:"cert_chain"`
		} `json:"certificates"`
	}
	if err := errors.Join(err, json.Unmarshal(body, &certs)); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	for _, c := range certs.Certificates {
		if len(c.Chain) > 0 {
			return c.Chain[0].Serial
		}
	}
	return ""
}
