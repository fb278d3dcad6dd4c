// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The addresses of this mesh, as those of the health of machines.
const (
	joinNetwork  = "127.77.52.0/24"
	joinFrontend = "127.77.52.2"
	joinV1       = "127.77.52.3"
	joinV2       = "127.77.52.4"
)

const joinService = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: machines, namespace: default}
spec:
  hosts: [machines.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 8080, name: http, protocol: HTTP}]
  workloadSelector: {labels: {joined: machines}}
`

const joinGroup = `apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: machines, namespace: default}
spec:
  metadata: {labels: {joined: machines}}
  template: {serviceAccount: catalog}
`

// TestVMRegistration runs the shop on separate addresses, where the agents of both catalogs name a
// WorkloadGroup. It checks in order:
//
//   - they are the endpoints of a service that selects only the group's label, and respond
//   - a new control plane still has them
//   - their entries are deleted and created with the group
//
// The test reads the endpoints from the frontend's Envoy, and checks their responses.
func TestVMRegistration(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	config := filepath.Join(s.dir, "config")
	group := filepath.Join(config, "group.yaml")
	for file, text := range map[string]string{filepath.Join(config, "catalog.yaml"): joinService, group: joinGroup} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s.join()
	s.start()
	s.waitFor("Ctrl-C ends it", time.Minute)

	wantMachines(t, joinV1, joinV2)
	client := throughProxy(t, joinFrontend)
	eventually(t, 2*time.Minute, func() string {
		count := map[string]int{}
		for range 40 {
			code, body, version, err := get(t.Context(), client, "http://machines.default.svc.cluster.local:8080/", nil)
			if err != nil || code != http.StatusOK {
				return fmt.Sprintf("the machines answer %d, %v: %s", code, err, body)
			}
			count[version]++
		}
		if len(count) != 2 {
			return fmt.Sprintf("%v answered, want both versions", count)
		}
		return ""
	})

	kill(t, s.find("outrigger-control", ""))
	s.waitFor("the control plane is ready again", 2*time.Minute)
	wantMachines(t, joinV1, joinV2)

	if err := os.Remove(group); err != nil {
		t.Fatal(err)
	}
	wantMachines(t)
	if err := os.WriteFile(group, []byte(joinGroup), 0o644); err != nil {
		t.Fatal(err)
	}
	wantMachines(t, joinV1, joinV2)
}

// join moves the shop to separate addresses and ports, and sets the group of the agents of both
// catalogs.
func (s *shop) join() {
	s.t.Helper()
	file := filepath.Join(s.dir, "mesh.yaml")
	b, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	text := strings.NewReplacer("config: config\n", "config: config\nnetwork: "+joinNetwork+"\n", "port: 1808", "port: 1838").Replace(string(b))
	if !strings.Contains(text, joinNetwork) || !strings.Contains(text, "18381") {
		s.t.Fatalf("%s has other fields than this test knows:\n%s", file, text)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
	agent := filepath.Join(s.bin, "outrigger-agent")
	program, err := filepath.EvalSymlinks(agent)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := os.Remove(agent); err != nil {
		s.t.Fatal(err)
	}
	script := "#!/bin/sh\ncase $POD_NAME in\ncatalog-*) export ISTIO_META_AUTO_REGISTER_GROUP=machines;;\nesac\nexec " + program + ` "$@"` + "\n"
	if err := os.WriteFile(agent, []byte(script), 0o755); err != nil {
		s.t.Fatal(err)
	}
}

// wantMachines waits until the frontend's Envoy has exactly these endpoints of
// the machines.
func wantMachines(t *testing.T, addresses ...string) {
	t.Helper()
	began := time.Now()
	eventually(t, 2*time.Minute, func() string {
		clusters, err := fetch(t, "http://"+joinFrontend+":15000/clusters")
		if err != nil {
			return err.Error()
		}
		for _, address := range []string{joinV1, joinV2} {
			want := strings.Contains(strings.Join(addresses, " ")+" ", address+" ")
			if has := strings.Contains(clusters, "machines.default.svc.cluster.local::"+address+":8080::"); has != want {
				<-time.After(20 * time.Millisecond) // the control plane sets the pace
				return fmt.Sprintf("the frontend's Envoy has the endpoint %s: %t, want %t", address, has, want)
			}
		}
		return ""
	})
	t.Logf("the frontend has the machines %v after %s", addresses, time.Since(began).Round(10*time.Millisecond))
}
