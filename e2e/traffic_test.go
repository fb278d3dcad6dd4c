// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// started runs a command of the tool, and returns it with its output once it has printed a text to
// standard error.
func (s *shop) started(text string, args ...string) (*exec.Cmd, *bufio.Reader) {
	s.t.Helper()
	cmd := exec.Command(filepath.Join(s.bin, "outrigger"), args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+s.tmp, "HOME="+s.home)
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	notes, err := cmd.StderrPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = cmd.Process.Kill() }) // most have ended
	said, lines := make(chan string), bufio.NewScanner(notes)
	go func() {
		defer close(said)
		for lines.Scan() {
			said <- lines.Text()
		}
	}()
	for deadline := time.After(2 * time.Minute); ; {
		select {
		case line, more := <-said:
			if strings.Contains(line, text) {
				go func() {
					for line := range said {
						s.t.Log(line)
					}
				}()
				return cmd, bufio.NewReader(out)
			}
			if !more {
				s.t.Fatalf("outrigger %v ended without %q", args, text)
			}
		case <-deadline:
			s.t.Fatalf("outrigger %v does not say %q", args, text)
		}
	}
}

// countedAt returns the requests from a workload to the catalog that agents show in all.
func (s *shop) countedAt(from string, addresses ...string) (n float64) {
	for _, address := range addresses {
		n += s.countedBy(from, address)
	}
	return n
}

func (s *shop) countedBy(from, address string) (n float64) {
	s.t.Helper()
	_, body, _, err := get(s.t.Context(), http.DefaultClient, "http://"+address+":15020/stats/prometheus", nil)
	if err != nil {
		return 0
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, m := range families["istio_requests_total"].GetMetric() {
		if of := labelsOf(m); of["source_workload"] == from && of["destination_app"] == "catalog" {
			n += m.GetCounter().GetValue()
		}
	}
	return n
}

// TestTop compares what outrigger top shows with the requests that a client has sent.
func TestTop(t *testing.T) {
	s := startShop(t)
	eventually(t, 2*time.Minute, func() string { // the start of the shop asks the catalog once, by the frontend
		if s.countedAt("frontend", catalogV1, catalogV2) < 1 || s.countedAt("frontend", frontend) < 1 {
			return "the first request is not counted"
		}
		return ""
	})
	client := throughProxy(t, orders)
	const n = 20
	send := func() {
		t.Helper()
		for i := range n {
			code, body, _, err := get(t.Context(), client, "http://catalog:8080/", nil)
			if err != nil || code != http.StatusOK {
				t.Fatalf("request %d: status %d: %v\n%s", i, code, err, body)
			}
		}
	}
	type flow struct {
		Source      string   `json:"source"`
		Destination string   `json:"destination"`
		Requests    float64  `json:"requests"`
		Success     *float64 `json:"success_rate"`
		P99         *float64 `json:"p99_milliseconds"`
	}
	var got struct{ Workloads, Edges []flow }
	for interval := 12 * time.Second; ; interval *= 2 { // Envoy updates histograms every 5 s
		if interval > 5*time.Minute {
			t.Fatal("the requests take longer than the interval of two samples")
		}
		begin, before := time.Now(), s.countedAt("orders", orders)
		cmd, out := s.started("measuring 4 proxies", "top", "--interval", interval.String(), "-o", "json")
		send()
		eventually(t, 2*time.Minute, func() string {
			if now := s.countedAt("orders", orders); now != before+n || s.countedAt("orders", catalogV1, catalogV2) != now {
				return fmt.Sprintf("%v requests are counted, %v before", now, before)
			}
			return ""
		})
		inTime := time.Since(begin) < interval-6*time.Second
		raw, err := io.ReadAll(out)
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		if err != nil || json.Unmarshal(raw, &got) != nil {
			t.Fatalf("%v:\n%s", err, raw)
		}
		if inTime {
			break
		}
	}
	var served, sent float64
	for _, w := range got.Workloads {
		if served += w.Requests; !strings.HasPrefix(w.Destination, "catalog-v") || w.Success == nil || *w.Success != 1 || w.P99 == nil || *w.P99 <= 0 {
			t.Errorf("a workload: %+v", w)
		}
	}
	for _, e := range got.Edges {
		if sent += e.Requests; e.Source != "orders" || !strings.HasPrefix(e.Destination, "catalog-v") || e.P99 == nil {
			t.Errorf("an edge: %+v", e)
		}
	}
	if served != n || sent != n {
		t.Errorf("%v requests to workloads, %v of edges, %d were sent: %+v", served, sent, n, got)
	}
}

// TestEnvoyTap compares what outrigger tap prints with the requests that a client has sent. However
// a tap ends, Envoy no longer logs requests.
func TestEnvoyTap(t *testing.T) {
	s := startShop(t)
	client := throughProxy(t, frontend)
	send := func(method, path string) {
		t.Helper()
		eventually(t, 2*time.Minute, func() string {
			req, err := http.NewRequestWithContext(t.Context(), method, "http://catalog:8080"+path+"?token=a-secret-query", strings.NewReader("a secret body"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer a-secret-token")
			resp, err := client.Do(req)
			if err != nil {
				return err.Error()
			}
			_ = resp.Body.Close()
			return ""
		})
	}
	runtime := func(address string) string {
		_, body, _, err := get(t.Context(), http.DefaultClient, "http://"+address+":15000/runtime", nil)
		if err != nil {
			return err.Error()
		}
		return body
	}
	over := func(how string) {
		t.Helper()
		eventually(t, 2*time.Minute, func() string {
			for _, address := range []string{frontend, catalogV1, catalogV2} {
				if text := runtime(address); strings.Contains(text, "outrigger.record") {
					return how + " leaves a log running at " + address + ": " + text
				}
			}
			return ""
		})
	}
	for _, c := range []struct {
		target, direction string
		proxies           int
		end               os.Signal
	}{{"catalog", "inbound", 2, os.Interrupt}, {"frontend", "outbound", 1, syscall.SIGKILL}} {
		cmd, out := s.started("tapping", "tap", c.target, "--path", "/tapped/", "-o", "json")
		eventually(t, 2*time.Minute, func() string { // the second proxy may begin later
			for _, address := range map[int][]string{1: {frontend}, 2: {catalogV1, catalogV2}}[c.proxies] {
				if text := runtime(address); strings.Count(text, "outrigger.record") != 2 {
					return "no log runs at " + address + ": " + text
				}
			}
			return ""
		})
		if text, err := s.tool("policy", "record", "--to", c.target, "--for", "1s"); err == nil || !strings.Contains(text, "requests are already being recorded") {
			t.Errorf("a second reader of the log: %v\n%s", err, text)
		}
		send(http.MethodGet, "/other")
		const n = 10
		for i := range n {
			send([]string{http.MethodGet, "PROPFIND"}[i%2], "/tapped/"+strconv.Itoa(i))
		}
		var paths []string
		for range n {
			paths = append(paths, tappedPath(t, out, c.target, c.direction))
		}
		if slices.Sort(paths); len(slices.Compact(paths)) != n {
			t.Errorf("the requests are %v", paths)
		}
		if err := cmd.Process.Signal(c.end); err != nil {
			t.Fatal(err)
		}
		if rest, _ := io.ReadAll(out); len(rest) > 0 { // the pipe may be closed
			t.Errorf("more requests than were sent: %s", rest)
		}
		if err := cmd.Wait(); err != nil && c.end == os.Interrupt {
			t.Errorf("Ctrl-C: %v", err)
		}
		over(c.end.String())
	}
	text, err := s.tool("tap", "catalog", "--for", "1s", "--sample", "1", "--status", "5xx")
	if err != nil || !strings.Contains(text, "0 requests, 0 dropped") {
		t.Errorf("a tap that ends by itself: %v\n%s", err, text)
	}
	over("the end")
	if text, err := s.tool("tap", "catalog", "--status", "5x"); err == nil || !strings.Contains(text, "404,5xx") {
		t.Errorf("a wrong flag: %v\n%s", err, text)
	}
}

// tappedPath reads a request of TestEnvoyTap, and returns its path.
func tappedPath(t *testing.T, out *bufio.Reader, target, direction string) string {
	t.Helper()
	line, err := out.ReadString('\n')
	var r struct {
		Time                                                                  time.Time
		Proxy, Direction, Source, Destination, Method, Path, Authority, Flags string
		Status                                                                int
		Duration                                                              float64 `json:"duration_milliseconds"`
		Received                                                              int     `json:"bytes_received"`
		Sent                                                                  int     `json:"bytes_sent"`
	}
	if err != nil || json.Unmarshal([]byte(line), &r) != nil {
		t.Fatalf("%v: %s", err, line)
	}
	number, err := strconv.Atoi(strings.TrimPrefix(r.Path, "/tapped/"))
	source, destination := "spiffe://cluster.local/ns/default/sa/frontend", ""
	if direction == "outbound" {
		source, destination = "", "catalog.default.svc.cluster.local:8080"
	}
	if err != nil || strings.Contains(line, "secret") || !strings.HasPrefix(r.Proxy, target) || r.Direction != direction || r.Source != source || r.Destination != destination ||
		r.Method != []string{http.MethodGet, "PROPFIND"}[number%2] || r.Authority != "catalog:8080" || r.Flags != "-" || r.Status < 400 || r.Status > 499 ||
		r.Duration <= 0 || r.Received != len("a secret body") || r.Sent == 0 || time.Since(r.Time).Abs() > time.Hour {
		t.Errorf("%v: %s", err, line)
	}
	return r.Path
}
