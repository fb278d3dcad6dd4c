// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const catalog = "http://catalog:8080/"

// TestShop runs the example shop once and checks in order:
//
//   - the table names every workload, its address, identity and expiry
//   - the requests and commands that it and the tool suggest succeed
//   - agent and Envoy listen only on ports that mesh files must not use
//   - an agent uses little memory
//   - the line of the README answers 200 through two Envoys
//   - a 90/10 split holds, a header match always goes to v2
//   - plaintext to a workload's port is refused, the backend sees the
//     caller's SPIFFE identity
//   - a changed VirtualService takes effect within 1 s and nothing restarts
//   - an invalid file is refused with its place, everything else keeps working, also after a
//     restart of the control plane
//   - no request fails while the control plane is killed and restarted
//   - a killed Envoy is reported by its agent and restarted
//   - so is one that is killed while the control plane hangs; it has its identity at once
//   - Ctrl-C stops everything within 10 s and leaves nothing behind
func TestShop(t *testing.T) { startShop(t).everything(t) }

// everything runs all steps on a ready mesh, and stops it.
func (s *shop) everything(t *testing.T) {
	t.Run("table", s.table)
	t.Run("suggested requests", s.tries)
	t.Run("suggested commands", s.suggestions)
	t.Run("reserved ports", s.reservedPorts)
	t.Run("memory", s.memory)
	t.Run("readme line", s.readmeLine)
	t.Run("split", s.split)
	t.Run("strict", s.strict)
	t.Run("change", s.change)
	t.Run("broken files", s.brokenFiles)
	t.Run("control plane killed", s.controlKilled)
	t.Run("envoy killed", s.envoyKilled)
	t.Run("envoy killed while the control plane hangs", s.envoyKilledWhileControlHangs)
	t.Run("ctrl-c", s.ctrlC)
}

// TestShopStateOfTheWorld runs the shop with agents whose Envoys use state-of-the-world xDS instead
// of deltas: the split, a change, and the control plane killed under load.
func TestShopStateOfTheWorld(t *testing.T) {
	s := newShop(t)
	s.setenv("outrigger-agent", "ISTIO_DELTA_XDS", "false")
	s.start()
	s.waitFor("Ctrl-C ends it", time.Minute)
	file, err := os.ReadFile(filepath.Join(s.stateDir(), "workloads", "frontend", "etc", "istio", "proxy", "envoy-rev.json"))
	if err != nil || strings.Contains(string(file), "DELTA_GRPC") {
		t.Fatalf("the bootstrap still asks for deltas, or cannot be read: %v", err)
	}
	t.Run("split", s.split)
	t.Run("change", s.change)
	t.Run("control plane killed", s.controlKilled)
}

func (s *shop) table(t *testing.T) {
	for workload, address := range map[string]string{"frontend": frontend, "catalog-v1": catalogV1, "catalog-v2": catalogV2, "orders": orders} {
		account, _, _ := strings.Cut(workload, "-")
		row := fmt.Sprintf(`(?m)^%s +%s +ready +spiffe://cluster\.local/ns/default/sa/%s +20\d\d-\d\d-\d\d`, workload, regexp.QuoteMeta(address), account)
		if !regexp.MustCompile(row).MatchString(s.out.String()) {
			t.Errorf("the table has no line like %s", row)
		}
	}
	s.waitFor(readmeLine, 2*time.Minute)
}

// memory waits until each agent uses little memory. An agent releases the memory of its start some
// time after it is ready.
func (s *shop) memory(t *testing.T) {
	for _, workload := range []string{"frontend", "catalog-v1", "catalog-v2", "orders"} {
		p := s.find("outrigger-agent", workload)
		eventually(t, 2*time.Minute, func() string {
			for _, limit := range []struct {
				field string
				kB    int
			}{{"VmRSS", 20 << 10}, {"RssAnon", 8 << 10}} {
				if got := statusField(t, p, limit.field); got > limit.kB {
					<-time.After(20 * time.Millisecond) // others need the machine, too
					return fmt.Sprintf("the agent of %s has %s of %d kB, more than %d", workload, limit.field, got, limit.kB)
				}
			}
			return ""
		})
	}
}

func (s *shop) readmeLine(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), readmeLine) {
		t.Errorf("the README has no line %q", readmeLine)
	}
	out, err := exec.Command("sh", "-c", readmeLine+" -sS -i").CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", readmeLine, err, out)
	}
	// Both the frontend's Envoy and the catalog's add their headers.
	for _, want := range []string{"HTTP/1.1 200 OK", "x-envoy-upstream-service-time:", "server: envoy", `"service"`, "spiffe://cluster.local/ns/default/sa/frontend"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the response has no %q:\n%s", want, out)
		}
	}
}

// share sends n requests to the catalog and returns how many reached v2.
func share(t *testing.T, n int, header http.Header) (v2 int) {
	t.Helper()
	client := throughProxy(t, frontend)
	var count atomic.Int64
	var wg sync.WaitGroup
	jobs := make(chan struct{})
	for range 20 {
		wg.Go(func() {
			for range jobs {
				code, body, version, err := get(t.Context(), client, catalog, header)
				if err != nil || code != http.StatusOK || version == "" {
					t.Errorf("got %d, %v: %s", code, err, body)
				}
				if version == "v2" {
					count.Add(1)
				}
			}
		})
	}
	for range n {
		jobs <- struct{}{}
	}
	close(jobs)
	wg.Wait()
	return int(count.Load())
}

func (s *shop) split(t *testing.T) {
	const n, weight = 2000, 0.10
	limit := 3 * math.Sqrt(n*weight*(1-weight))
	off := func(v2 int) bool { return math.Abs(float64(v2)-n*weight) > limit }
	// A correct split deviates by that much once in 370 times, twice in a row once in 137,000.
	if v2 := share(t, n, nil); off(v2) {
		t.Logf("%d of %d requests went to v2, want %d within %.0f; once more", v2, n, int(n*weight), limit)
		if v2 = share(t, n, nil); off(v2) {
			t.Errorf("%d of %d requests went to v2, want %d within %.0f", v2, n, int(n*weight), limit)
		}
	}
	if v2 := share(t, 200, http.Header{"X-Version": {"v2"}}); v2 != 200 {
		t.Errorf("%d of 200 requests with the header went to v2, want all", v2)
	}
}

func (s *shop) strict(t *testing.T) {
	for _, address := range []string{frontend, catalogV1, catalogV2, orders} {
		conn, err := net.DialTimeout("tcp", address+":8080", 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second)) // cannot fail on an open connection
		_, _ = fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: catalog:8080\r\nConnection: close\r\n\r\n")
		answer := make([]byte, 64)
		if n, err := conn.Read(answer); err == nil {
			t.Errorf("plaintext to %s was answered: %q", address, answer[:n])
		}
		_ = conn.Close()
	}
	// A caller cannot choose its identity.
	forged := http.Header{"X-Forwarded-Client-Cert": {"URI=spiffe://cluster.local/ns/default/sa/admin"}}
	_, body, _, err := get(t.Context(), throughProxy(t, orders), catalog, forged)
	if err != nil || !strings.Contains(body, "spiffe://cluster.local/ns/default/sa/orders") || strings.Contains(body, "sa/admin") {
		t.Errorf("the catalog does not see orders as its caller: %s, %v", body, err)
	}
}

// family returns the process ids of all programs, to detect restarts. It ignores Envoys that an
// agent starts for their version, and processes without arguments, which have exited.
func (s *shop) family() string {
	asks := func(p process) bool { return p.args == "" || strings.HasSuffix(p.args, "envoy --version ") }
	return fmt.Sprint(slices.DeleteFunc(s.processes(), asks))
}

func (s *shop) change(t *testing.T) {
	before, file := s.family(), s.read("catalog.yaml")
	defer s.write("catalog.yaml", file)
	all := strings.NewReplacer("weight: 90", "weight: 0", "weight: 10", "weight: 100").Replace(file)
	s.write("catalog.yaml", all)
	s.allV2(t, time.Second)
	if v2 := share(t, 200, nil); v2 != 200 {
		t.Errorf("%d of 200 requests went to v2 after the change, want all", v2)
	}
	if after := s.family(); after != before {
		t.Errorf("processes changed from %s to %s", before, after)
	}
}

// allV2 waits until 30 requests in a row go to v2.
func (s *shop) allV2(t *testing.T, limit time.Duration) {
	t.Helper()
	s.all(t, "v2", limit)
}

func (s *shop) all(t *testing.T, version string, limit time.Duration) {
	t.Helper()
	client, began, row := throughProxy(t, frontend), time.Now(), 0
	var first time.Time
	for row < 30 {
		code, body, got, err := get(t.Context(), client, catalog, nil)
		if err != nil || code != http.StatusOK {
			t.Fatalf("got %d, %v: %s", code, err, body)
		}
		if row++; got != version {
			row = 0
		} else if row == 1 {
			first = time.Now()
		}
		if time.Since(began) > limit+time.Minute {
			break
		}
	}
	if took := first.Sub(began); row < 30 || took > limit+time.Minute {
		t.Errorf("the change took %s to count, want %s or less", took, limit)
	}
}

func (s *shop) brokenFiles(t *testing.T) {
	file := s.read("catalog.yaml")
	defer s.write("catalog.yaml", file)
	s.write("catalog.yaml", strings.NewReplacer("weight: 90", "weight: 0", "weight: 10", "weight: 100").Replace(file))
	s.allV2(t, time.Second)
	for _, tc := range []struct{ name, content, says string }{
		{"bad YAML", strings.Replace(file, "  http:", "  http: [", 1), "catalog.yaml:"},
		{"unknown field", strings.Replace(file, "weight: 90", "wieght: 90", 1), `wieght`},
		{"invalid weight", strings.Replace(file, "weight: 90", "weight: -90", 1), "weight"},
	} {
		s.write("catalog.yaml", tc.content)
		s.waitFor(tc.says, 2*time.Minute)
		if v2 := share(t, 100, nil); v2 != 100 {
			t.Errorf("%s: %d of 100 requests went to v2, want the last good state: all", tc.name, v2)
		}
		s.showsLastGood(t)
	}
	// A restart of the control plane also keeps the last good state.
	kill(t, s.find("outrigger-control", ""))
	s.waitFor("the control plane is ready again", 2*time.Minute)
	if v2 := share(t, 100, nil); v2 != 100 {
		t.Errorf("after a restart of the control plane %d of 100 requests went to v2, want the last good state: all", v2)
	}
	s.showsLastGood(t)
	// Another file still takes effect while this one is invalid.
	s.write("orders.yaml", "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: orders}\nspec:\n  hosts: [orders]\n"+
		"  http:\n  - directResponse: {status: 418}\n")
	defer func() { _ = os.Remove(filepath.Join(s.dir, "config", "orders.yaml")) }()
	eventually(t, 2*time.Minute, func() string {
		code, _, _, err := get(t.Context(), throughProxy(t, frontend), "http://orders:8080/", nil)
		if err == nil && code == http.StatusTeapot {
			return ""
		}
		return fmt.Sprintf("orders answers %d, %v; want 418 by the new file", code, err)
	})
}

// showsLastGood waits until the tool prints the version of the VirtualService that is in force
// while its file is invalid.
func (s *shop) showsLastGood(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{{"get", "vs", "catalog", "-o", "yaml"}, {"describe", "vs", "catalog"}} {
		eventually(t, 2*time.Minute, func() string {
			if out, err := s.tool(args...); err != nil || !strings.Contains(out, "weight: 100") {
				return fmt.Sprintf("%v: %v\n%s", args, err, out)
			}
			return ""
		})
	}
}

// eventually waits until check returns no complaint.
func eventually(t *testing.T, limit time.Duration, check func() string) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		complaint := check()
		if complaint == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s: %s", limit, complaint)
		}
	}
}

func (s *shop) controlKilled(t *testing.T) {
	load := startLoad(t, 200)
	load.atLeast(t, 200) // traffic flows
	kill(t, s.find("outrigger-control", ""))
	s.waitFor("the control plane terminated by signal", 2*time.Minute)
	load.atLeast(t, 400)
	s.waitFor("the control plane is ready again", 2*time.Minute)

	file := s.read("catalog.yaml")
	s.write("catalog.yaml", strings.NewReplacer("weight: 90", "weight: 0", "weight: 10", "weight: 100").Replace(file))
	s.all(t, "v2", 2*time.Minute) // the agents reconnect automatically
	s.write("catalog.yaml", file)
	load.atLeast(t, 400)
	total, failed := load.stop()
	if len(failed) > 0 {
		t.Errorf("%d of %d requests failed while the control plane was away, first: %s", len(failed), total, failed[0])
	}
	t.Logf("%d requests, %d failed", total, len(failed))
}

// load is a stream of requests at a steady rate.
type load struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	total  atomic.Int64
	mu     sync.Mutex // guards failed
	failed []string
}

func startLoad(t *testing.T, perSecond int) *load {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	l := &load{cancel: cancel}
	t.Cleanup(cancel)
	client := throughProxy(t, frontend)
	l.done.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			l.done.Go(func() {
				code, body, _, err := get(t.Context(), client, catalog, nil)
				if err != nil || code != http.StatusOK {
					l.mu.Lock()
					l.failed = append(l.failed, fmt.Sprintf("%d, %v: %s", code, err, body))
					l.mu.Unlock()
				}
				l.total.Add(1)
			})
		}
	})
	return l
}

// atLeast waits for n more requests.
func (l *load) atLeast(t *testing.T, n int64) {
	t.Helper()
	goal := l.total.Load() + n
	eventually(t, 2*time.Minute, func() string {
		if got := l.total.Load(); got < goal {
			<-time.After(10 * time.Millisecond) // the load sets the pace
			return fmt.Sprintf("%d requests were made, want %d", got, goal)
		}
		return ""
	})
}

func (l *load) stop() (total int64, failed []string) {
	l.cancel()
	l.done.Wait()
	return l.total.Load(), l.failed
}

func (s *shop) envoyKilled(t *testing.T) {
	envoy, agent := s.find("envoy", "catalog-v1"), s.find("outrigger-agent", "catalog-v1")
	kill(t, envoy)
	s.waitFor("catalog-v1: the agent exited with code", 2*time.Minute)
	line := lastLine(s.out.String(), "the agent exited with code")
	if !strings.Contains(line, "signal") || !strings.Contains(line, "killed") || strings.Contains(line, "exit code 0") {
		t.Errorf("the agent's end does not say why: %s", line)
	}
	s.waitFor("catalog-v1: the agent is ready again", 2*time.Minute)
	if !gone(agent) || !gone(envoy) {
		t.Error("the agent or Envoy that was killed is still there")
	}
	code, body, _, err := get(t.Context(), throughProxy(t, catalogV1), "http://orders:8080/healthz", nil)
	if err != nil || code != http.StatusOK {
		t.Errorf("the new Envoy of catalog-v1 answers %d, %v: %s", code, err, body)
	}
}

// envoyKilledWhileControlHangs kills an Envoy, and with it its agent, while the control plane
// accepts connections but does not respond. The next Envoy serves the last good configuration, with
// the stored identity.
func (s *shop) envoyKilledWhileControlHangs(t *testing.T) {
	control, envoy := s.find("outrigger-control", ""), s.find("envoy", "orders")
	if err := syscall.Kill(control.pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Kill(control.pid, syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	}()
	kill(t, envoy)
	s.waitFor("orders: the agent exited with code", 2*time.Minute)
	// Through it, to an Envoy that requires a certificate.
	client := throughProxy(t, orders)
	eventually(t, 2*time.Minute, func() string {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		code, body, _, err := get(ctx, client, catalog, nil)
		if err != nil || code != http.StatusOK || !strings.Contains(body, "sa/orders") {
			return fmt.Sprintf("the new Envoy of orders answers %d, %v: %s", code, err, body)
		}
		return ""
	})
	s.outageOf(t, orders)
	eventually(t, 2*time.Minute, func() string {
		out, err := s.tool("proxy", "secrets", "orders", "--timeout", "2s")
		if err == nil && strings.Contains(out, "No control plane answers") && strings.Contains(out, "default") {
			return ""
		}
		return fmt.Sprintf("the secrets of orders: %v\n%s", err, out)
	})
	// The key of the workload is not on disk in plain text.
	err := filepath.WalkDir(s.stateDir(), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || !strings.Contains(path, "/orders/") {
			return err
		}
		doc, err := os.ReadFile(path)
		if bytes.Contains(doc, []byte("PRIVATE KEY")) {
			t.Errorf("%s holds a private key", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func lastLine(text, with string) string {
	lines := strings.Split(text, "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if strings.Contains(lines[i], with) {
			return lines[i]
		}
	}
	return ""
}

func (s *shop) ctrlC(t *testing.T) {
	family := s.processes()
	if len(family) < 1+3*4 { // control plane; application, agent and Envoy of each workload
		t.Errorf("only %d processes run: %v", len(family), family)
	}
	took := s.interrupt(2 * time.Minute)
	t.Logf("ended in %s", took)
	eventually(t, 2*time.Minute, func() string { // the end of a process that was killed takes a moment
		for _, p := range family {
			if !gone(p) {
				return fmt.Sprintf("%v is still there", p)
			}
		}
		return ""
	})
	s.wantNothingLeft(t)
}

// wantNothingLeft asserts that no file is left outside the user's own.
func (s *shop) wantNothingLeft(t *testing.T) {
	t.Helper()
	for _, dir := range []string{s.tmp, s.home} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			t.Errorf("%s is left", filepath.Join(dir, e.Name()))
		}
	}
}
