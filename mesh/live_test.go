// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/time/rate"
)

// TestWatch shows a sequence of observations, and expects only what changes.
func TestWatch(t *testing.T) {
	t.Parallel()
	out := &safeBuffer{}
	u := &Mesh{
		mesh: &meshFile{file: "/shop/mesh.yaml"}, cfg: Config{WorkDir: "/shop"},
		screen: newScreen(Display{Out: out}, nil),
	}
	w := watcher{mesh: u, state: &state{dir: "/state"}, limit: rate.NewLimiter(0, 100), known: map[string]problem{}, failing: map[string]int{}}
	route := Trouble{Kind: "VirtualService", Namespace: "default", Name: "catalog", Source: "/shop/config/catalog.yaml:3", Text: "spec.http[0]: no service.", Cure: "Correct the host. (IST0101)"}
	moved := route
	moved.Source = "/shop/config/catalog.yaml:4"
	typo := Trouble{Kind: "VirtualService", Namespace: "default", Name: "orders", Source: "/shop/config/orders.yaml:1", Text: `Unknown field "wieght".`, Cure: `Did you mean "weight"? (IST0106)`}
	certificate := Trouble{Warning: true, Workload: "web", Text: "the certificate has not been renewed"}
	agent := func(kind eventKind) { u.show(&part{name: "web", role: roleAgent}, event{kind: kind, life: 2}) }
	log := func(msg string) {
		u.configProblem(w.state, fmt.Sprintf("level=WARN msg=%q kind=VirtualService namespace=default name=orders reason=%q", msg, `unknown field "wieght": did you mean "weight"?; the last good version stays in force`))
	}
	requests := func(n, failed float64) []Service { return []Service{{Name: "catalog", Requests: n, Failed: failed}} }
	for _, step := range []struct {
		name   string
		before func()
		seen   Observation
		want   string
	}{
		{name: "nothing"},
		{name: "a finding", seen: Observation{Troubles: []Trouble{route}}, want: "outrigger: config/catalog.yaml:3: VirtualService default/catalog: spec.http[0]: no service. Correct the host. (IST0101)\n"},
		{name: "twice, on another line", seen: Observation{Troubles: []Trouble{moved, moved}}},
		{name: "in the log first", before: func() { log(msgProblem) }, seen: Observation{Troubles: []Trouble{moved, typo}}},
		{name: "also gone in the log", before: func() { log(msgGone) }, seen: Observation{Troubles: []Trouble{moved}}},
		{name: "in the log again", before: func() { log(msgProblem) }, seen: Observation{Troubles: []Trouble{moved, typo}}},
		{name: "gone, but not in the log", seen: Observation{Troubles: []Trouble{moved}}, want: "outrigger: resolved: config/orders.yaml:1: VirtualService default/orders: Unknown field \"wieght\".\n"},
		{name: "resolved", want: "outrigger: resolved: config/catalog.yaml:4: VirtualService default/catalog: spec.http[0]: no service.\n"},
		{name: "a certificate", seen: Observation{Troubles: []Trouble{certificate}}, want: "outrigger: web: the certificate has not been renewed\n"},
		{name: "of an agent that ended", before: func() { agent(eventEnded) }, want: "outrigger: resolved: web: the certificate has not been renewed\n"},
		{name: "which is down", seen: Observation{Troubles: []Trouble{certificate}}},
		{name: "and was not up before", before: func() { agent(eventReady) }, seen: Observation{Troubles: []Trouble{certificate}}},
		{name: "few failures", seen: Observation{Services: requests(1000, 9)}},
		{name: "failures", seen: Observation{Services: requests(50, 3)}, want: "outrigger: catalog: 3 of 50 requests fail: outrigger tap --status 0,5xx shows them\n"},
		{name: "more", seen: Observation{Services: requests(50, 50)}},
		{name: "a pause", seen: Observation{Services: requests(0, 0)}},
		{name: "success", seen: Observation{Services: requests(50, 0)}, want: "outrigger: catalog: requests succeed again\n"},
	} {
		began := time.Now()
		if step.before != nil {
			step.before()
		}
		from := len(out.String())
		w.show(step.seen, began)
		if got := out.String()[from:]; got != step.want {
			t.Errorf("%s: got %q, want %q", step.name, got, step.want)
		}
	}
	w.show(Observation{Services: requests(9, 9)}, time.Now())
	for range idleAfter {
		w.show(Observation{}, time.Now())
	}
	if !strings.HasSuffix(out.String(), "outrigger: catalog: no more requests since some failed\n") {
		t.Errorf("without requests the output ends with %q", out.String()[max(0, len(out.String())-200):])
	}
}

// TestWatchIsBounded has more troubles than lines.
func TestWatchIsBounded(t *testing.T) {
	t.Parallel()
	out := &safeBuffer{}
	u := &Mesh{mesh: &meshFile{}, screen: newScreen(Display{Out: out}, nil)}
	w := watcher{mesh: u, state: &state{}, limit: rate.NewLimiter(0, 5), known: map[string]problem{}, failing: map[string]int{}}
	var many Observation
	for i := range maxTroubles + 10 {
		many.Troubles = append(many.Troubles, Trouble{Text: strings.Repeat(fmt.Sprint(i), maxTroubleLen)})
	}
	w.show(many, time.Now())
	if n := strings.Count(out.String(), "\n"); n != 5 || len(w.known) != maxTroubles || len(out.String()) > 5*(maxTroubleLen+100) {
		t.Errorf("%d lines of %d bytes, %d troubles are followed", n, len(out.String()), len(w.known))
	}
	w.limit = rate.NewLimiter(rate.Inf, 1)
	w.show(Observation{}, time.Now())
	if want := fmt.Sprintf("outrigger: %d changes were not shown: outrigger status", maxTroubles-5); !strings.Contains(out.String(), want) {
		t.Errorf("the output lacks %q", want)
	}
	for i := range 2 * maxLogged {
		u.live.log(map[string]string{"kind": "VirtualService", "name": fmt.Sprint(i), "reason": "x"}, false)
	}
	if u.live.count != maxLogged || len(u.live.logged) != maxLogged {
		t.Errorf("%d problems of the log are remembered", len(u.live.logged))
	}
}

// TestStatusLines checks what a terminal shows below the output.
func TestStatusLines(t *testing.T) {
	t.Parallel()
	out := &safeBuffer{}
	size := [2]int{24, 60}
	s := newScreen(Display{Out: out, Terminal: true, size: func() (int, int) { return size[0], size[1] }}, nil)
	u := &Mesh{mesh: &meshFile{}, screen: s}
	s.settle()
	w := watcher{mesh: u, state: &state{}, limit: rate.NewLimiter(0, 0), known: map[string]problem{}, failing: map[string]int{}}
	w.show(Observation{
		Services: []Service{{Name: "orders", Requests: 20, Rate: 4}, {Name: "catalog", Requests: 50, Failed: 5, Rate: 10, P99: 12.4}},
		Troubles: []Trouble{{Text: "first\nline and what does not fit into the width of this terminal"}},
	}, time.Now())
	first := "SERVICE                      REQ/S   SUCCESS       P99\n" +
		"catalog                       10.0    90.00%     12 ms\n" +
		"orders                         4.0   100.00%         -\n" +
		"first line and what does not fit into the width of this ter…\n"
	if got := out.String(); got != first {
		t.Errorf("got\n%s\nwant\n%s", got, first)
	}
	s.child("web", levelNone, "a line")
	again := first + "\r\x1b[4A\x1b[Jweb     | a line\n" + first // the lines come again a moment later
	eventually(t, "the status lines are below the output", func() bool { return out.String() == again })

	// A small terminal, and much to show.
	u.show(&part{name: "web", role: roleApp}, event{kind: eventEnded, life: 2, exit: exit{code: 3}})
	size = [2]int{12, 200}
	var many Observation
	for i := range 20 {
		many.Services = append(many.Services, Service{Name: fmt.Sprintf("s%02d", i), Requests: 1, Rate: float64(i)})
		many.Troubles = append(many.Troubles, Trouble{Text: fmt.Sprint("trouble ", i)})
	}
	many.Services[3].Failed = 1
	eventually(t, "the status lines", func() bool {
		from := len(out.String())
		w.show(many, time.Now())
		lines := strings.Split(strings.TrimSuffix(out.String()[from:], "\n"), "\n")
		// The clearing sequence is at the beginning of the first one. A line of output may be redrawn between.
		return len(lines) == 5 && strings.HasSuffix(lines[0], "and 19 more services") && strings.HasPrefix(lines[1], "s03 ") &&
			strings.HasPrefix(lines[2], "web: the application exited with code 3 at ") && lines[3] == "trouble 0" &&
			lines[4] == "and 19 more problems: outrigger status and analyze show them"
	})
	u.show(&part{name: "web", role: roleApp}, event{kind: eventReady, life: 3})
	w.show(Observation{}, time.Now())
	if !strings.HasSuffix(out.String(), "no requests in the last seconds\n") {
		t.Errorf("without requests: %q", out.String())
	}
	s.end()
	s.setStatus([]colored{{"", "late"}})
	s.say("", "end")
	if !strings.HasSuffix(out.String(), "\r\x1b[1A\x1b[Jend\n") {
		t.Errorf("at the end: %q", out.String())
	}
}

// TestServiceOf checks which service a workload belongs to.
func TestServiceOf(t *testing.T) {
	t.Parallel()
	m := &meshFile{workloads: []*workload{{name: "catalog-v1", service: "catalog", namespace: "a"}, {name: "web", service: "web", namespace: "a"}}}
	two := &meshFile{workloads: append(m.workloads, &workload{name: "db", service: "db", namespace: "b"})}
	for _, c := range []struct {
		m                     *meshFile
		name, namespace, want string
	}{
		{m, "catalog-v1", "a", "catalog"},
		{m, "catalog", "a", "catalog"},
		{m, "catalog-v1", "b", "catalog-v1"},
		{two, "catalog-v1", "a", "catalog.a"},
		{two, "db", "b", "db.b"},
		{two, "example.com", "", "example.com"},
	} {
		if got := c.m.serviceOf(c.name, c.namespace); got != c.want {
			t.Errorf("the service of %s in %q is %s, want %s", c.name, c.namespace, got, c.want)
		}
	}
}

// observed is an observer of a test.
type observed struct{ watched Watched }

func (o observed) Observe(context.Context) Observation {
	return Observation{Troubles: []Trouble{{Text: "seen at " + o.watched.Control + " with " + o.watched.Service("web", "default")}}}
}

func (o observed) Serve(ctx context.Context, l net.Listener) error {
	s := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the page") })}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	return s.Serve(l)
}

// TestUpIsObserved runs a mesh with an observer and opens the dashboard, where there is no browser.
func TestUpIsObserved(t *testing.T) {
	t.Parallel()
	dir := programs(t)
	file := write(t, fmt.Sprintf("network: 127.77.7.0/24\nworkloads:\n- {name: web, command: [%s/app], port: %d, servicePort: 8080}\n", dir, freePort(t)))
	out := &safeBuffer{}
	stop := start(t, Config{
		File: file, Programs: dir, Envoy: "/none", Display: Display{Out: out}, Open: true,
		Observe: func(w Watched) Observer { return observed{w} }, observeEvery: time.Millisecond,
	})
	eventually(t, "the observation", func() bool {
		return strings.Contains(out.String(), "outrigger: seen at 127.77.7.1:15014 with web\n") && strings.Contains(out.String(), "no browser is opened, because neither DISPLAY")
	})
	_, page, _ := strings.Cut(out.String(), "the dashboard is at ")
	page, _, _ = strings.Cut(page, "\n")
	if got := get(page); got != "the page" {
		t.Errorf("at %q is %q", page, got)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(out.String(), "seen at"); n != 1 {
		t.Errorf("the trouble is shown %d times", n)
	}
}

// TestBrowse opens an address with programs of the test.
func TestBrowse(t *testing.T) {
	dir := t.TempDir()
	opened := filepath.Join(dir, "opened")
	t.Setenv("PATH", dir)
	desktop := []string{"DISPLAY=:7", "PATH=/bin:/usr/bin"}
	for _, c := range []struct {
		name, program, script string
		environ               []string
		opens                 string
		err                   string
	}{
		{name: "no desktop", environ: []string{"DISPLAY=", "HOME=/"}, err: "neither DISPLAY nor WAYLAND_DISPLAY nor BROWSER is set: open http://127.0.0.1:1/ in one"},
		{name: "sudo", environ: append(desktop, "SUDO_UID=1000"), err: "as another user"},
		{name: "no program", environ: desktop, err: "neither xdg-open nor open in PATH"},
		{name: "open", program: "open", script: `echo "open $1" > ` + opened, environ: []string{"WAYLAND_DISPLAY=w"}, opens: "open http://127.0.0.1:1/\n"},
		{name: "xdg-open", program: "xdg-open", script: `echo "xdg $1 $DISPLAY" > ` + opened, environ: desktop, opens: "xdg http://127.0.0.1:1/ :7\n"},
		{name: "it fails", program: "xdg-open", script: "exit 3", environ: []string{"BROWSER=lynx"}, err: "(xdg-open: exit status 3): open http://127.0.0.1:1/ in one"},
	} {
		if c.program != "" {
			if err := os.WriteFile(filepath.Join(dir, c.program), []byte("#!/bin/sh\n"+c.script+"\n"), 0o700); err != nil { //nolint:gosec // it is a program
				t.Fatal(err)
			}
		}
		err := Browse(c.environ, "http://127.0.0.1:1/")
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.err)
		}
		if c.opens != "" {
			if got, err := os.ReadFile(opened); err != nil || string(got) != c.opens {
				t.Errorf("%s: opened %q, %v", c.name, got, err)
			}
		}
	}
}
