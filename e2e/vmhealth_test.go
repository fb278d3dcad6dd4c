// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The addresses of this mesh: the control plane's and those of its workloads.
const (
	vmControl   = "127.1.7.1"
	vmFrontend  = "127.1.7.2"
	vmCatalogV1 = "127.1.7.3"
	vmCatalogV2 = "127.1.7.4"
)

// TestVMHealth runs the shop on separate addresses, as machines whose agents check the application
// by readinessProbe: that of catalog-v1 over HTTP, that of catalog-v2 with a command. It checks in
// order:
//
//   - both serve the frontend
//   - catalog-v1 hangs: within the time of its thresholds it is removed from the frontend's
//     endpoints, the control plane's metric counts it, and no more requests reach it
//   - a new control plane receives its health again from the agent
//   - catalog-v1 recovers: it is added again, and responds
//   - the command of catalog-v2 fails: it is removed, and added again
//   - both are unhealthy: the control plane removes both
//
// The test reads the endpoints from the frontend's Envoy, and the versions from responses.
func TestVMHealth(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	sick := filepath.Join(s.dir, "catalog-v2-is-sick")
	s.atMachines(map[string]string{
		"catalog-v1": "httpGet: {host: 127.0.0.1, port: 18281, path: /healthz}",
		"catalog-v2": "exec: {command: [test, '!', -e, " + sick + "]}",
	})
	s.start()
	s.waitFor("Ctrl-C ends it", time.Minute)

	s.wantCatalogs(t, vmCatalogV1, vmCatalogV2)
	wantAnswers(t, "v1", "v2")

	v1 := s.findCatalog("v1")
	signal := func(sig syscall.Signal) {
		if err := syscall.Kill(v1.pid, sig); err != nil {
			t.Fatalf("signal %v to %v: %v", sig, v1, err)
		}
	}
	signal(syscall.SIGSTOP)
	t.Cleanup(func() { _ = syscall.Kill(v1.pid, syscall.SIGCONT) }) // so that it can be ended
	s.wantCatalogs(t, vmCatalogV2)
	wantAnswers(t, "v2")
	wantUnhealthy(t, 1)

	kill(t, s.find("outrigger-control", ""))
	s.waitFor("the control plane is ready again", 2*time.Minute)
	wantUnhealthy(t, 1)
	s.wantCatalogs(t, vmCatalogV2)
	wantAnswers(t, "v2")

	signal(syscall.SIGCONT)
	s.wantCatalogs(t, vmCatalogV1, vmCatalogV2)
	wantAnswers(t, "v1", "v2")
	wantUnhealthy(t, 0)

	if err := os.WriteFile(sick, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s.wantCatalogs(t, vmCatalogV1)
	wantAnswers(t, "v1")

	signal(syscall.SIGSTOP)
	s.wantCatalogs(t)
	wantUnhealthy(t, 2)

	signal(syscall.SIGCONT)
	if err := os.Remove(sick); err != nil {
		t.Fatal(err)
	}
	s.wantCatalogs(t, vmCatalogV1, vmCatalogV2)
	wantAnswers(t, "v1", "v2")
}

// atMachines moves the shop to separate addresses and ports, without its routes, and sets a
// readinessProbe of workloads, as an annotation does.
func (s *shop) atMachines(probes map[string]string) {
	s.t.Helper()
	file := filepath.Join(s.dir, "mesh.yaml")
	b, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	text := strings.NewReplacer("config: config\n", "network: 127.1.7.0/24\n", "port: 1808", "port: 1828").Replace(string(b))
	if !strings.Contains(text, "127.1.7.0") || !strings.Contains(text, "18281") {
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
	script := "#!/bin/sh\nmkdir -p etc/istio/pod\ncase $POD_NAME in\n"
	for workload, probe := range probes {
		script += fmt.Sprintf("%s) cat > etc/istio/pod/annotations <<'END'\nproxy.istio.io/config=%q\nEND\n;;\n", workload,
			"readinessProbe: {periodSeconds: 1, successThreshold: 2, failureThreshold: 2, "+probe+"}")
	}
	script += "esac\nexec " + program + ` "$@"` + "\n"
	if err := os.WriteFile(agent, []byte(script), 0o755); err != nil {
		s.t.Fatal(err)
	}
}

// findCatalog returns the process of one version of the catalog.
func (s *shop) findCatalog(version string) process {
	s.t.Helper()
	for _, p := range s.processes() {
		if strings.Contains(p.args, "shop catalog --version "+version) {
			return p
		}
	}
	s.t.Fatalf("no catalog %s among %v", version, s.processes())
	return process{}
}

// wantCatalogs waits until the frontend's Envoy has exactly these endpoints of the catalog.
// Unhealthy workloads have been probed twice by then, a second apart, for a second each.
func (s *shop) wantCatalogs(t *testing.T, addresses ...string) {
	t.Helper()
	began := time.Now()
	eventually(t, 2*time.Minute, func() string {
		clusters, err := fetch(t, "http://"+vmFrontend+":15000/clusters")
		if err != nil {
			return err.Error()
		}
		for _, address := range []string{vmCatalogV1, vmCatalogV2} {
			want := strings.Contains(strings.Join(addresses, " ")+" ", address+" ")
			if has := strings.Contains(clusters, "catalog.default.svc.cluster.local::"+address+":8080::"); has != want {
				<-time.After(20 * time.Millisecond) // the agents set the pace
				return fmt.Sprintf("the frontend's Envoy has the endpoint %s: %t, want %t", address, has, want)
			}
		}
		return ""
	})
	t.Logf("the frontend has the endpoints %v after %s", addresses, time.Since(began).Round(10*time.Millisecond))
}

// wantAnswers waits until 60 requests in a row succeed and reach exactly these versions. Envoy's
// workers may apply endpoints slightly after it shows them.
func wantAnswers(t *testing.T, versions ...string) {
	t.Helper()
	client := throughProxy(t, vmFrontend)
	client.Timeout = 2 * time.Second
	eventually(t, 2*time.Minute, func() string {
		count := map[string]int{}
		for range 60 {
			code, body, version, err := get(t.Context(), client, catalog, nil)
			if err != nil || code != http.StatusOK {
				return fmt.Sprintf("the catalog answers %d, %v: %s", code, err, body)
			}
			count[version]++
		}
		if got := slices.Sorted(maps.Keys(count)); !slices.Equal(got, versions) {
			return fmt.Sprintf("%v answered, want %v", count, versions)
		}
		return ""
	})
}

// wantUnhealthy waits until the control plane counts n machines as out of service.
func wantUnhealthy(t *testing.T, n int) {
	t.Helper()
	want := fmt.Sprintf("\noutrigger_control_unhealthy_workloads %d\n", n)
	eventually(t, 2*time.Minute, func() string {
		metrics, err := fetch(t, "http://"+vmControl+":15014/metrics")
		if err == nil && strings.Contains(metrics, want) {
			return ""
		}
		<-time.After(20 * time.Millisecond) // as above
		return fmt.Sprintf("the control plane's metrics hold no %q: %v", want, err)
	})
}

// fetch gets a page of the mesh itself.
func fetch(t *testing.T, address string) (string, error) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	resp, err := client.Get(address)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }() // it was read to its end
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answered %s", address, resp.Status)
	}
	return string(b), err
}
