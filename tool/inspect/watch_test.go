// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// printed is output that a test reads while a command writes it.
type printed struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *printed) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

// wait waits until the output contains a text behind a position, and returns the position after it.
func (s *printed) wait(t *testing.T, from int, text string) int {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		s.mu.Lock()
		_, rest, found := strings.Cut(s.text.String()[from:], text)
		length := s.text.Len()
		s.mu.Unlock()
		if found {
			return length - len(rest)
		}
	}
	t.Fatalf("the output does not contain %q:\n%s", text, s.text.String()[from:])
	return 0
}

// replies are what a control plane answers.
type replies struct {
	mu      sync.Mutex
	proxies []report.Proxy
	history []report.Version
	object  report.Object
	away    bool
	same    int // how often a client had the answer already
}

func (r *replies) set(change func(*replies)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r)
}

func (r *replies) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var doc any = report.Replica{Name: "istiod-0", Pushed: now, Proxies: r.proxies}
	if strings.HasSuffix(q.URL.Path, "history") {
		h := report.History{Begins: now}
		since, _ := time.Parse(time.RFC3339Nano, q.URL.Query().Get("since")) // without it, all
		for _, one := range r.history {
			if !one.At.Before(since) {
				h.Versions = append(h.Versions, one)
			}
		}
		doc = h
	} else if strings.HasSuffix(q.URL.Path, "explain") {
		if doc = r.object; q.URL.Query().Has("proxyID") {
			doc = report.Decided{Proxy: r.proxies[0]}
		}
	}
	raw, err := json.Marshal(doc)
	if r.away || err != nil {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "out of service", http.StatusServiceUnavailable)
		return
	}
	tag := fmt.Sprintf(`W/"%x"`, sha256.Sum256(raw))
	if w.Header().Set("ETag", tag); q.Header.Get("If-None-Match") == tag && q.Header.Get("Cache-Control") == "max-age=1" {
		r.same++
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = w.Write(raw) // the client may be gone
}

// watching starts a command that watches. end ends it as SIGINT does, and returns the exit code.
func watching(t *testing.T, out io.Writer, width int, args ...string) (notes *printed, end func() int) {
	t.Helper()
	root := &cobra.Command{Use: "outrigger", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Commands(Config{Width: width, Exit: func(code int, err error) error {
		if err == nil {
			err = errors.New("")
		}
		return exit{code, err}
	}})...)
	notes = &printed{}
	root.SetOut(out)
	root.SetErr(notes)
	root.SetArgs(append(args, "--watch", "--interval", "1s"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- root.ExecuteContext(ctx) }()
	return notes, func() int {
		cancel()
		var e exit
		if err := <-done; errors.As(err, &e) {
			if e.Error() != "" {
				t.Errorf("the command ends with %q", e.Error())
			}
			return e.code
		} else if err != nil {
			t.Error(err)
		}
		return 0
	}
}

// TestWatchStatus checks that status --watch prints the rows that change, names a control plane that goes
// and comes, and has the exit code of the last state.
func TestWatchStatus(t *testing.T) {
	t.Parallel()
	cart, web := report.Proxy{Name: "cart.shop", Types: types()}, report.Proxy{Name: "web.shop", Types: types()}
	r := &replies{proxies: []report.Proxy{cart, web}}
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	var out, documents printed
	notes, end := watching(t, &out, 0, "status", "--control", s.URL)
	_, endDocuments := watching(t, &documents, 0, "status", "--control", s.URL, "-o", "json")
	at := out.wait(t, 0, "2 proxies: all have what they were sent.\nControl plane istiod-0 ")
	doc := documents.wait(t, 0, "\n]\n")
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		same := 0
		if r.set(func(r *replies) { same = r.same }); same >= 2 {
			break
		}
	}
	r.set(func(r *replies) {
		r.proxies[0] = report.Proxy{Name: "cart.shop", Types: types(report.Type{Name: "lds", State: report.Rejected, Since: now, Reason: "cannot bind"})}
	})
	at = out.wait(t, at, "cart.shop   REJECTED ")
	at = out.wait(t, at, "Envoy says: cannot bind")
	doc = documents.wait(t, doc, "cannot bind")
	r.set(func(r *replies) { r.away = true })
	notes.wait(t, 0, "it returned 503: out of service; asking again\n")
	doc = documents.wait(t, doc, "out of service")
	r.set(func(r *replies) { r.away, r.proxies = false, []report.Proxy{{Name: "cart.shop", Types: types()}} })
	notes.wait(t, 0, "answers again, after ")
	at = out.wait(t, at, "cart.shop   SYNCED ")
	at = out.wait(t, at, "web.shop    GONE     -       -\n")
	if code := end(); code != 0 {
		t.Errorf("got exit code %d although all is well", code)
	}
	if rest := out.text.String()[at:]; rest != "" || strings.Count(out.text.String(), "web.shop ") != 2 {
		t.Errorf("rows that did not change are printed:\n%s", &out.text)
	}
	documents.wait(t, doc, "\"cart.shop\"")
	if code := endDocuments(); code != 0 {
		t.Errorf("-o json: got exit code %d", code)
	}
	var all int
	for d := json.NewDecoder(&documents.text); ; all++ {
		var list []asked
		if err := d.Decode(&list); errors.Is(err, io.EOF) {
			break
		} else if err != nil || len(list) != 1 {
			t.Fatalf("document %d: %v", all, err)
		}
	}
	if all != 4 {
		t.Errorf("got %d documents, want one for each of 4 states", all)
	}
	if r.same < 2 {
		t.Error("answers that the commands have are sent again")
	}
	r.set(func(r *replies) { r.away = true })
	if _, errs, code := run(t, "status", "--watch", "--control", s.URL); code != 1 || !strings.Contains(errs, "it returned 503: out of service") {
		t.Errorf("without a control plane: got exit code %d: %s", code, errs)
	}
	if _, errs, code := run(t, "status", "--watch", "--interval", "1ms"); code != 2 || !strings.Contains(errs, "must be from 1s to 10m0s") {
		t.Errorf("got exit code %d: %s", code, errs)
	}
}

// TestWatchExplain checks that explain --watch prints an object and a proxy again once they change.
func TestWatchExplain(t *testing.T) {
	t.Parallel()
	standing := func(state report.State) report.Object {
		return report.Object{
			Ref: report.Ref{Kind: "VirtualService", Namespace: "shop", Name: "web"}, Found: true, InForce: true, Changed: now,
			Resources: []report.Resource{{Type: "rds", Name: "http_proxy", Proxies: 1}}, Proxies: []report.Standing{{Proxy: "cart.shop", State: state, Since: now}},
		}
	}
	r := &replies{object: standing(report.Stale), proxies: []report.Proxy{{Name: "cart.shop", Types: types(report.Type{Name: "lds", State: report.Stale})}}}
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	var object, proxy printed
	notes, endObject := watching(t, &object, 0, "explain", "vs/web.shop", "--control", s.URL)
	_, endProxy := watching(t, &proxy, 0, "explain", "cart", "--control", s.URL, "-o", "yaml")
	at, of := object.wait(t, 0, "0 of 1 proxy has it in force"), proxy.wait(t, 0, "state: STALE")
	r.set(func(r *replies) { r.away = true })
	notes.wait(t, 0, "it returned 503: out of service; asking again\n")
	r.set(func(r *replies) {
		r.away, r.object, r.proxies = false, standing(report.Synced), []report.Proxy{{Name: "cart.shop", Types: types()}}
	})
	at = object.wait(t, at, "1 of 1 proxy has it in force.\n")
	proxy.wait(t, of, "---\n")
	if codes := []int{endObject(), endProxy()}; codes[0] != 0 || codes[1] != 0 || object.text.Len() != at {
		t.Errorf("got the exit codes %d:\n%s", codes, &object.text)
	}
	for _, args := range []string{"IST0101 --watch", "vs/web --watch --at 1h", "vs/web --watch --interval 1ms"} {
		if _, errs, code := run(t, append([]string{"explain"}, strings.Fields(args)...)...); code != exitUsage {
			t.Errorf("%s: got exit code %d: %s", args, code, errs)
		}
	}
}

// TestWatchHistory checks that each version is printed once, in the same columns.
func TestWatchHistory(t *testing.T) {
	t.Parallel()
	version := func(at time.Time, name, revision string) report.Version {
		return report.Version{Ref: report.Ref{Kind: "VirtualService", Namespace: "shop", Name: name}, At: at, Change: report.Updated, Revision: revision, Source: "a.yaml:1"}
	}
	r := &replies{history: []report.Version{version(now, "catalog", "aaaaaaaa"), version(now, "a", "bbbbbbbb")}}
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	var out printed
	notes, end := watching(t, &out, 0, "history", "--control", s.URL)
	at := out.wait(t, 0, "The history begins at ")
	r.set(func(r *replies) { r.away = true })
	notes.wait(t, 0, "error: outrigger history: ")
	r.set(func(r *replies) {
		r.away, r.history = false, append(r.history, version(now, "c", "cccccccc"), version(now.Add(time.Second), "d", "dddddddd"))
	})
	at = out.wait(t, at, "vs/c.shop         updated   cccccccc   a.yaml:1\n")
	at = out.wait(t, at, "vs/d.shop         updated   dddddddd   a.yaml:1\n")
	notes.wait(t, 0, "outrigger history answers again")
	if code := end(); code != 0 || out.text.Len() != at || strings.Count(out.text.String(), "a.yaml:1") != 4 {
		t.Errorf("got exit code %d:\n%s", code, &out.text)
	}
}

// TestWatchAnalyze checks that an analysis of files is printed again once it changes.
func TestWatchAnalyze(t *testing.T) {
	t.Parallel()
	file := t.TempDir() + "/a.yaml"
	write := func(host string) {
		text := "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a}\nspec: {hosts: [a.b], http: [{route: [{destination: {host: " + host + "}}]}]}\n---\n" +
			"apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: a}\nspec: {hosts: [a.b], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}\n"
		if err := os.WriteFile(file+"~", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+"~", file); err != nil {
			t.Fatal(err)
		}
	}
	write("one.shop")
	var out printed
	_, end := watching(t, &out, 0, "analyze", file)
	at := out.wait(t, 0, "one.shop")
	write("two.shop")
	out.wait(t, at, "two.shop")
	if code := end(); code != 1 {
		t.Errorf("got exit code %d, want that of an analysis with an error", code)
	}
	if _, errs, code := run(t, "analyze", "--watch", "-"); code != 2 || !strings.Contains(errs, "name files") {
		t.Errorf("got exit code %d: %s", code, errs)
	}
}

// TestWatchTerminal checks that a terminal is repainted, in the lines and columns that it has.
func TestWatchTerminal(t *testing.T) {
	t.Parallel()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminal can be opened: %v", err)
	}
	defer func() { _ = master.Close() }() // nothing is left to read
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err := errors.Join(err, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0), unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 9, Col: 30})); err != nil {
		t.Skipf("no terminal can be opened: %v", err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminal can be opened: %v", err)
	}
	defer func() { _ = terminal.Close() }() // see above
	var screen printed
	go func() { _, _ = io.Copy(&screen, master) }() // ends with the terminal
	r := &replies{}
	for i := range 20 {
		r.proxies = append(r.proxies, report.Proxy{Name: fmt.Sprintf("catalog-with-a-long-name-%d.shop", i), Types: types()})
	}
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	_, end := watching(t, terminal, 30, "status", "--control", s.URL)
	at := screen.wait(t, 0, "\x1b[HEvery 1s, ")
	at = screen.wait(t, at, "more lines\x1b[K\r\n\x1b[J")
	r.set(func(r *replies) { r.away = true })
	at = screen.wait(t, at, "it returned 503")
	if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 60, Col: 80}); err != nil {
		t.Fatal(err)
	}
	at = screen.wait(t, at, "catalog-with-a-long-name-19.shop")
	screen.wait(t, at, "its proxies are shown as they were then.")
	if code := end(); code != 1 {
		t.Errorf("got exit code %d although the control plane does not answer", code)
	}
}

// TestBackOff checks how long a command waits for a control plane that is too busy.
func TestBackOff(t *testing.T) {
	t.Parallel()
	busy := true
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if busy {
			w.Header().Set("Retry-After", "2")
			http.Error(w, "retry in 2s", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("{}")) // the client may be gone
	}))
	t.Cleanup(s.Close)
	w := &watcher{flags: &askFlags{memory: newMemory()}}
	once := func() (time.Duration, error) {
		a := ask[report.Replica](t.Context(), []string{s.URL}, question{path: "proxies", memory: w.flags.memory}, time.Minute)
		return w.backOff(), a[0].err
	}
	for _, middle := range []time.Duration{2, 4, 8, 16, 30, 30} {
		middle *= time.Second
		if got, err := once(); err == nil || got < middle/2 || got > middle*3/2 {
			t.Errorf("waits %s after %v, want about %s", got, err, middle)
		}
	}
	busy = false
	if got, err := once(); err != nil || got != 0 {
		t.Errorf("waits %s after an answer: %v", got, err)
	}
	busy = true
	if got, _ := once(); got > 3*time.Second {
		t.Errorf("waits %s after the first refusal since an answer", got)
	}
}

// TestPainting checks what a terminal is painted with.
func TestPainting(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		page          string
		height, width int
		want          string
	}{
		{"a\nb\n", 0, 0, "a|b|"},
		{"a\nb\n", 3, 80, "a|b|"},
		{"a\nb\nc\n", 3, 80, "a|… and 2 more lines|"},
		{"aaaa\nb\nc\n", 4, 2, "aaaa|… and 2 more lines|"},
		{"a\nbbbbbb\nc\n", 4, 2, "a|… and 2 more lines|"},
	} {
		got := painting(tc.page, tc.height, tc.width)
		if want := "\x1b[H" + strings.ReplaceAll(tc.want, "|", "\x1b[K\n") + "\x1b[J"; got != want {
			t.Errorf("painting(%q, %d, %d) = %q, want %q", tc.page, tc.height, tc.width, got, want)
		}
	}
}
