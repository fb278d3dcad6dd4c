// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// counter is a server that counts requests by path.
type counter struct {
	mu sync.Mutex // guards n
	n  map[string]int
}

func (c *counter) of(path string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[path]
}

// startCounter forwards requests to a handler and returns the address of its server.
func startCounter(t *testing.T, to http.Handler) (*counter, string) {
	t.Helper()
	c := &counter{n: map[string]int{}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		c.n[r.URL.Path]++
		c.mu.Unlock()
		to.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return c, strings.TrimPrefix(s.URL, "http://")
}

// startDashboard runs the command until the test ends, and returns the URL of the page.
func startDashboard(t *testing.T, args ...string) string {
	t.Helper()
	root := &cobra.Command{Use: "outrigger", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Commands(Config{
		Default: func() ([]string, error) { return nil, errors.New("name one with --control") },
		Exit:    func(code int, err error) error { return exit{code, err} },
	})...)
	out, in := io.Pipe()
	root.SetOut(in)
	root.SetArgs(append([]string{"dashboard"}, args...))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		err := root.ExecuteContext(ctx)
		_ = in.CloseWithError(err) // a reader sees the error
		done <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	found := regexp.MustCompile(`http://127\.0\.0\.1:\d+/`).FindString(line)
	if err != nil || found == "" {
		t.Fatalf("got %q, error %v, want a URL", line, err)
	}
	return found
}

// load returns the response to a GET.
func load(t *testing.T, from string, change func(*http.Request)) (code int, body string, header http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, from, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(r)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // only read
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(raw), resp.Header
}

// panelOf returns the data of a panel.
func panelOf[T any](t *testing.T, page, name string) (data T, answer collected) {
	t.Helper()
	code, body, header := load(t, page+"api/"+name, nil)
	if err := json.Unmarshal([]byte(body), &answer); err != nil || code != 200 || header.Get("Content-Type") != "application/json" || strings.ContainsAny(body, "<>") {
		t.Fatalf("%s: status %d, error %v: %s", name, code, err, body)
	}
	if answer.Error == "" {
		if err := json.Unmarshal(answer.Data, &data); err != nil || answer.At.IsZero() || answer.Every <= 0 {
			t.Fatalf("%s: error %v: %s", name, err, body)
		}
	}
	return data, answer
}

type shownStatus struct {
	Controls []asked `json:"control_planes"`
	Omitted  int     `json:"omitted"`
}

type shownTraffic struct {
	traffic
	Omitted int
	Note    string
}

// TestDashboard asks for the page and all of its data.
func TestDashboard(t *testing.T) {
	t.Parallel()
	const hostile = "web<script>alert(1)</script>"
	control := startControl(t, "istiod-0")
	control.proxy(t, hostile, "Error adding/updating cluster(s) outbound|80||web.shop.svc.cluster.local: <b>no</b>")
	agentPages := []string{requestsOf("destination", "<i>web", "cart", 5, 0), requestsOf("destination", "<i>web", "cart", 12, 0)}
	agent := http.NewServeMux()
	samples := make(chan string, 2)
	samples <- agentPages[0]
	samples <- agentPages[1]
	agent.HandleFunc("/stats/prometheus", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, <-samples) })
	agent.HandleFunc("/debug/outage", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(testOutages()[0]) })
	_, address := startCounter(t, agent)
	page := startDashboard(t, "--control", control.http, "--agent", address, "--interval", "1s")

	code, body, header := load(t, page, nil)
	if policy := header.Get("Content-Security-Policy"); code != 200 || !strings.Contains(body, `src="page.js"`) || !strings.HasPrefix(policy, "default-src 'self';") || strings.Contains(policy, "unsafe") {
		t.Errorf("the page: status %d, policy %q\n%s", code, policy, body)
	}
	for _, name := range []string{"page.js", "graph.js", "map.js", "page.css", "icon.svg"} {
		if code, body, header := load(t, page+name, nil); code != 200 || body == "" || header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: status %d", name, code)
		}
	}
	status, _ := panelOf[shownStatus](t, page, "status")
	if c := status.Controls; len(c) != 1 || c[0].Name != "istiod-0" || len(c[0].Proxies) != 1 || c[0].Proxies[0].Name != hostile+".shop" || worst(c[0].Proxies[0]) != report.Rejected {
		t.Errorf("status: got %+v", c[0].Replica)
	}
	outages, _ := panelOf[[]outage](t, page, "outage")
	if len(outages) != 1 || outages[0].Agent != address || len(outages[0].Parts) != 6 {
		t.Errorf("outage: got %+v", outages)
	}
	for begin := time.Now(); ; time.Sleep(100 * time.Millisecond) { // the second sample is taken a second later
		got, _ := panelOf[shownTraffic](t, page, "top")
		if got.Proxies > 0 {
			if e := shown(got.Edges); e != "<i>web>cart 7 1.00; " || shown(got.Workloads) != ">cart 7 1.00; " {
				t.Errorf("top: got %+v", got)
			}
			break
		} else if time.Since(begin) > 2*time.Minute {
			t.Fatalf("top: no second sample, got %+v", got)
		}
	}
	if got, _ := panelOf[analyze.Result](t, page, "findings"); got.Objects != 2 {
		t.Errorf("findings: got %+v, want 2 objects", got)
	}
	if _, answer := panelOf[report.History](t, page, "history"); !strings.Contains(answer.Error, "records no versions") {
		t.Errorf("history of a control plane that keeps none: got %+v", answer)
	}
}

// TestDashboardExplains explains requests.
func TestDashboardExplains(t *testing.T) {
	t.Parallel()
	control := startControl(t, "istiod-0")
	control.proxy(t, "web-1", "")
	page := startDashboard(t, "--control", control.http)
	code, body, _ := load(t, page+"api/explain?from=none&to=web-1.shop&port=7", nil)
	var got struct {
		Decision report.Decision
		Text     string
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil || code != 200 || got.Decision.Allowed || got.Decision.Proxy != "web-1.shop" || !strings.HasPrefix(got.Text, "Denied: the connection is closed\n") {
		t.Errorf("status %d, error %v: %s", code, err, body)
	}
	for query, want := range map[string]string{
		"":                                    "client and workload are missing",
		"?from=none&to=nobody&port=7":         `"nobody" is unknown`,
		"?from=none&to=web-1.shop&port=70000": "not a number from 1 to 65535",
		"?from=none&to=web-1.shop&at=soon":    `"soon" is not a time`,
	} {
		if code, body, _ := load(t, page+"api/explain"+query, nil); code < 400 || code >= 500 || !strings.Contains(body, want) {
			t.Errorf("%q: status %d: %s, want %q", query, code, body, want)
		}
	}
	// A token may be the name of a file on the command line, but not here.
	if code, body, _ := load(t, page+"api/explain?from=none&to=web-1.shop&port=7&jwt="+url.QueryEscape("/no/such/file"), nil); code != 200 {
		t.Errorf("with a file as token: status %d: %s", code, body)
	}
}

// TestDashboardRefuses sends requests that web pages of others can cause.
func TestDashboardRefuses(t *testing.T) {
	t.Parallel()
	asked, address := startCounter(t, http.NotFoundHandler())
	page := startDashboard(t, "--control", address)
	for name, c := range map[string]struct {
		change func(*http.Request)
		code   int
	}{
		"another host":      {func(r *http.Request) { r.Host = "attacker.example:80" }, http.StatusForbidden},
		"host of a page":    {func(r *http.Request) { r.Host = "localhost.attacker.example" }, http.StatusForbidden},
		"a web page":        {func(r *http.Request) { r.Header.Set("Origin", "https://attacker.example") }, http.StatusForbidden},
		"another site":      {func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, http.StatusForbidden},
		"through a proxy":   {func(r *http.Request) { r.Header.Set("Via", "1.1 proxy") }, http.StatusForbidden},
		"POST":              {func(r *http.Request) { r.Method = http.MethodPost }, http.StatusMethodNotAllowed},
		"DELETE":            {func(r *http.Request) { r.Method = http.MethodDelete }, http.StatusMethodNotAllowed},
		"an unknown path":   {func(r *http.Request) { r.URL.Path = "/api/secrets" }, http.StatusNotFound},
		"a file of another": {func(r *http.Request) { r.URL.Path, r.URL.RawPath = "/../dashboard.go", "/%2e%2e%2fdashboard.go" }, http.StatusNotFound},
	} {
		for _, path := range []string{"", "api/status", "api/explain"} {
			if code, body, _ := load(t, page+path, c.change); code != c.code {
				t.Errorf("%s, %q: status %d, want %d: %s", name, path, code, c.code, body)
			}
		}
	}
	if n := asked.of("/debug/proxies"); n > 0 {
		t.Errorf("the control plane was asked %d times", n)
	}
	if code, _, _ := load(t, strings.Replace(page, "127.0.0.1", "localhost", 1), func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "none") }); code != 200 {
		t.Errorf("localhost, typed into a browser: status %d", code)
	}
	nobody := listenNowhere(t)
	for _, bad := range []string{"0.0.0.0:0", "10.0.0.1:80", "[::]:0", "localhost:80", "127.0.0.1", "127.0.0.6:0"} {
		if _, errs, code := run(t, "dashboard", "--control", nobody, "--address", bad); code != 2 || !strings.Contains(errs, "not a loopback address with a port") {
			t.Errorf("--address %s: exit code %d: %s", bad, code, errs)
		}
	}
	if _, errs, code := run(t, "dashboard", "--control", nobody, "--address", strings.TrimSuffix(strings.TrimPrefix(page, "http://"), "/")); code != 1 || !strings.Contains(errs, "address already in use") {
		t.Errorf("a port in use: exit code %d: %s", code, errs)
	}
	for want, args := range map[string][]string{"must be from 1s to": {"--interval", "1ms"}, "leave out PROXY and -n": {"--agent", nobody, "-n", "shop"}, "name one with --control": nil} {
		if _, errs, code := run(t, append([]string{"dashboard"}, args...)...); code != 2 || !strings.Contains(errs, want) {
			t.Errorf("%q: exit code %d: %s", args, code, errs)
		}
	}
}

// TestDashboardAsksOnce opens the page in many tabs.
func TestDashboardAsksOnce(t *testing.T) {
	t.Parallel()
	control := startControl(t, "istiod-0")
	asked, address := startCounter(t, httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: control.http}))
	page := startDashboard(t, "--control", address, "--interval", "10m")
	load(t, page, nil)
	load(t, page+"page.js", nil)
	if n := asked.of("/debug/proxies") + asked.of("/debug/analyze"); n > 0 {
		t.Errorf("the control plane was asked %d times, although no tab has asked for data", n)
	}
	var tabs sync.WaitGroup
	for range 20 {
		tabs.Go(func() {
			panelOf[shownStatus](t, page, "status")
			panelOf[analyze.Result](t, page, "findings")
		})
	}
	tabs.Wait()
	for _, path := range []string{"/debug/proxies", "/debug/analyze"} {
		if n := asked.of(path); n != 1 {
			t.Errorf("20 tabs caused %d requests for %s, want 1", n, path)
		}
	}
}

// TestPanel checks when a panel is collected, and what it says after an error.
func TestPanel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, fail := 0, false
		p := panel{every: time.Minute, retry: 5 * time.Second, most: time.Second, collect: func(ctx context.Context) (any, error) {
			if n++; fail {
				<-ctx.Done()
				return nil, errors.New("gone")
			}
			return n, nil
		}}
		begin := time.Now()
		check := func(after time.Duration, data, text string, every float64, at time.Time) {
			t.Helper()
			time.Sleep(after)
			var got collected
			if err := json.Unmarshal(p.answer(t.Context()), &got); err != nil || string(got.Data) != data || got.Error != text || got.Every != every || !got.At.Equal(at) {
				t.Errorf("got %+v with data %s, error %v", got, got.Data, err)
			}
		}
		check(0, "1", "", 60, begin)
		check(59*time.Second, "1", "", 60, begin)
		fail = true
		check(time.Second, "1", "gone", 5, begin) // takes a second
		check(4*time.Second, "1", "gone", 5, begin)
		if n != 2 {
			t.Errorf("collected %d times, want 2", n)
		}
		fail = false
		check(time.Second, "3", "", 60, begin.Add(66*time.Second))
	})
}

// TestDashboardBounds asks a control plane that knows too much, and one that then goes away.
func TestDashboardBounds(t *testing.T) {
	t.Parallel()
	mesh := report.Replica{Name: "istiod-0"}
	for i := range maxShown + 7 {
		mesh.Proxies = append(mesh.Proxies, report.Proxy{Name: fmt.Sprint(i), Types: []report.Type{{Name: "cds", State: report.Synced}}})
	}
	mesh.Proxies[maxShown+3].Types[0].State = report.Rejected
	found, past := analyze.Result{Unlisted: 1}, report.History{Omitted: 1}
	for i := range maxFound + 2 {
		found.Findings = append(found.Findings, analyze.Finding{Code: "IST0101", Message: fmt.Sprint(i)})
		past.Versions = append(past.Versions, report.Version{Revision: fmt.Sprint(i)})
	}
	answers := map[string]any{"/debug/proxies": mesh, "/debug/analyze": found, "/debug/history": past}
	gone := make(chan struct{})
	_, address := startCounter(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-gone:
			http.Error(w, "gone", http.StatusServiceUnavailable)
		default:
			_ = json.NewEncoder(w).Encode(answers[r.URL.Path]) // the test sees what is missing
		}
	}))
	page := startDashboard(t, "--control", address, "--interval", "1s")
	status, before := panelOf[shownStatus](t, page, "status")
	if list := status.Controls[0].Proxies; len(list) != maxShown || status.Omitted != 7 || worst(list[0]) != report.Rejected {
		t.Errorf("%d proxies, %d omitted, the first is %s", len(list), status.Omitted, worst(list[0]))
	}
	if got, _ := panelOf[analyze.Result](t, page, "findings"); len(got.Findings) != maxFound || got.Unlisted != 3 {
		t.Errorf("%d findings, %d unlisted", len(got.Findings), got.Unlisted)
	}
	if got, _ := panelOf[report.History](t, page, "history"); len(got.Versions) != maxChanges || got.Omitted != maxFound+3-maxChanges || got.Versions[maxChanges-1].Revision != fmt.Sprint(maxFound+1) {
		t.Errorf("%d versions, %d omitted", len(got.Versions), got.Omitted)
	}
	if _, got := panelOf[shownTraffic](t, page, "top"); !strings.Contains(got.Error, "no proxy is connected") {
		t.Errorf("top of proxies without addresses: got %+v", got)
	}
	close(gone)
	for begin := time.Now(); ; time.Sleep(100 * time.Millisecond) { // a collection is a second old at most
		_, got := panelOf[shownStatus](t, page, "status")
		if strings.Contains(got.Error, "it returned 503: gone") {
			if !bytes.Equal(got.Data, before.Data) && len(got.Data) != len(before.Data) || got.At.Before(before.At) {
				t.Errorf("the last data are missing: %.200s", got.Data)
			}
			break
		} else if time.Since(begin) > 2*time.Minute {
			t.Fatalf("no error: %.200s", got.Error)
		}
	}
	if raw, err := bounded(strings.Repeat("x", maxPageAnswer)); err == nil || !strings.Contains(err.Error(), "ask for fewer proxies") {
		t.Errorf("%d bytes are not refused: %v", len(raw), err)
	}
}

// TestPageFiles checks that the page loads nothing from elsewhere, runs no script that is in HTML, and
// makes no HTML of text.
func TestPageFiles(t *testing.T) {
	t.Parallel()
	bad := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|setHTML|createContextualFragment|DOMParser|document\.write|\beval\b|new Function|import\b|\bstyle=|\son[a-z]+=|javascript:|<script>|<style|srcdoc|href', `)
	remote := regexp.MustCompile(`(?:https?:)?//[a-z0-9]+\.[^\s'"]*`)
	n := 0
	err := fs.WalkDir(page, "page", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		n++
		text, err := fs.ReadFile(page, path)
		for _, word := range bad.FindAllString(string(text), -1) {
			t.Errorf("%s has %q", path, word)
		}
		for _, found := range remote.FindAllString(string(text), -1) {
			if found != "http://www.w3.org/2000/svg" {
				t.Errorf("%s names %s", path, found)
			}
		}
		return err
	})
	if err != nil || n != 6 {
		t.Errorf("%d files, error %v", n, err)
	}
}
