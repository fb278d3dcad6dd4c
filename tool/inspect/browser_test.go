// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// browser is a Chromium that a test controls.
type browser struct {
	t       *testing.T
	to      *os.File
	from    *bufio.Reader
	session string
	last    int

	requests []string // the URLs that the browser has asked for
}

// startBrowser opens a page.
func startBrowser(t *testing.T, page string) *browser {
	t.Helper()
	var program string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "../../bin/chromium/chromium"} {
		if path, err := exec.LookPath(name); err == nil && program == "" {
			program = path
		}
	}
	if program == "" {
		t.Skip("no chromium, chromium-browser or google-chrome in PATH, and none of scripts/get-chromium in bin")
	}
	theirsIn, ours, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	mine, theirsOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	// Root has no sandbox of Chromium; the page is the one of the test.
	cmd := exec.Command(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe", "--user-data-dir="+t.TempDir(), "about:blank")
	cmd.ExtraFiles = []*os.File{theirsIn, theirsOut} // 3 and 4
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = theirsIn.Close(), theirsOut.Close() // the browser has them
	b := &browser{t: t, to: ours, from: bufio.NewReaderSize(mine, 1<<20)}
	watch := time.AfterFunc(3*time.Minute, func() { _ = cmd.Process.Kill() }) // reads then fail
	t.Cleanup(func() {
		watch.Stop()
		_, _ = ours.WriteString(`{"id":0,"method":"Browser.close"}` + "\x00") // it may have ended
		_ = ours.Close()
		late := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait() // the files of the browser are removed next
		late.Stop()
		_ = mine.Close()
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	b.call("Network.enable", nil, nil)
	b.call("Page.navigate", map[string]any{"url": page}, nil)
	return b
}

// call calls a method of the DevTools protocol.
func (b *browser) call(method string, params, result any) {
	b.t.Helper()
	if err := b.try(method, params, result); err != nil {
		b.t.Fatal(err)
	}
}

// try calls a method that the browser may refuse.
func (b *browser) try(method string, params, result any) error {
	b.t.Helper()
	b.last++
	request := map[string]any{"id": b.last, "method": method, "params": params}
	if b.session != "" {
		request["sessionId"] = b.session
	}
	raw, err := json.Marshal(request)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.to.Write(append(raw, 0)); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	for {
		raw, err := b.from.ReadBytes(0)
		if err != nil {
			b.t.Fatalf("%s: %v", method, err)
		}
		var answer struct {
			ID     int
			Method string
			Params struct{ Request struct{ URL string } }
			Error  *struct{ Message string }
			Result json.RawMessage
		}
		if err := json.Unmarshal(raw[:len(raw)-1], &answer); err != nil {
			b.t.Fatal(err)
		}
		if answer.Method == "Network.requestWillBeSent" {
			b.requests = append(b.requests, answer.Params.Request.URL)
		}
		if answer.ID != b.last {
			continue
		}
		if answer.Error != nil {
			return fmt.Errorf("%s: %s", method, answer.Error.Message)
		}
		if result != nil {
			return json.Unmarshal(answer.Result, result)
		}
		return nil
	}
}

// eval returns the value of an expression in the page.
func eval[T any](b *browser, expression string) (value T) {
	b.t.Helper()
	var answer struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct{ Exception struct{ Description string } }
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &answer)
	if e := answer.ExceptionDetails; e != nil {
		b.t.Fatalf("%s: %s", expression, e.Exception.Description)
	}
	if err := json.Unmarshal(answer.Result.Value, &value); err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// until waits until an expression is true in the page.
func (b *browser) until(expression string) {
	b.t.Helper()
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		var answer struct{ Result struct{ Value any } }
		if b.try("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}, &answer) == nil && answer.Result.Value == true {
			return // before the page has loaded, there is nothing to evaluate in
		}
		if time.Since(began) > 2*time.Minute {
			b.t.Fatalf("never true: %s; the page is\n%s", expression, eval[string](b, "document.body.innerText"))
		}
	}
}

// manyServices returns a control plane and an agent of many services.
func manyServices(t *testing.T, n int) (control, agent string) {
	t.Helper()
	replica := report.Replica{Name: "istiod-0", Version: "v1", Pushed: ago(time.Minute)}
	for i := range n {
		replica.Proxies = append(replica.Proxies, report.Proxy{
			Name: fmt.Sprintf("service-%d-7c6bdf8d9b-x4kq.shop", i), Namespace: "shop", Role: "sidecar", Addresses: []string{"127.77.51.90"},
			Types: []report.Type{{Name: "cds", State: report.Synced, Since: ago(time.Hour), Resources: n}, {Name: "lds", State: report.Synced, Since: ago(time.Hour), Resources: n}},
		})
	}
	found := analyze.Result{Objects: n, Findings: []analyze.Finding{{Code: "IST0101", Severity: analyze.Error, Object: analyze.Object{Kind: "VirtualService", Namespace: "shop", Name: "a"}, Source: "a.yaml:1", Message: "It is wrong.", Cure: "Correct it."}}}
	object := func(host string) json.RawMessage {
		return json.RawMessage(`{"apiVersion":"networking.istio.io/v1","kind":"VirtualService","metadata":{"name":"a","namespace":"shop"},"spec":{"hosts":["` + host + `"]}}`)
	}
	ref := report.Ref{Kind: "VirtualService", Namespace: "shop", Name: "a"}
	past := report.History{Begins: ago(time.Hour), Versions: []report.Version{
		{Ref: ref, At: ago(time.Hour), Change: report.Created, Revision: "aaaa1111", Object: object("<b>old</b>")},
		{Ref: ref, At: ago(time.Minute), Change: report.Updated, Revision: "bbbb2222", Object: object("new")},
		{Ref: ref, At: ago(time.Second), Change: report.Deleted},
	}}
	mesh := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answers := map[string]any{"/debug/proxies": replica, "/debug/analyze": found, "/debug/history": past}
		if revision := r.FormValue("revision"); revision != "" {
			some := report.History{Begins: past.Begins}
			for _, v := range past.Versions {
				if v.Revision == revision {
					some.Versions = append(some.Versions, v)
				}
			}
			answers["/debug/history"] = some
		}
		_ = json.NewEncoder(w).Encode(answers[r.URL.Path]) // the test sees what is missing
	}))
	t.Cleanup(mesh.Close)
	var asked atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("/stats/prometheus", func(w http.ResponseWriter, _ *http.Request) {
		count := 10 * asked.Add(1)
		for i := range 4 * n { // each calls four, and some fail
			code := 200
			if i%(n/5+1) == 3 {
				code = 503
			}
			_, _ = fmt.Fprintf(w, "istio_requests_total{reporter=\"source\",source_workload=\"service-%d\",source_workload_namespace=\"shop\",destination_workload=\"service-%d\",destination_workload_namespace=\"shop\",response_code=\"%d\"} %d\n", i/4, (i+1+i%4*i%97)%n, code, count+int64(i))
		}
	})
	mux.HandleFunc("/debug/outage", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(testOutages()[0]) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return mesh.URL, strings.TrimPrefix(server.URL, "http://")
}

// faintTexts is an expression for the texts whose contrast with what is behind them is below 4.5, as the
// Web Content Accessibility Guidelines compute it. Of the picture it looks at the fill of the texts.
const faintTexts = `(() => {
  const parse = c => (c.match(/[0-9.]+/g) ?? []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [.2126, .7152, .0722][i], 0);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const rect = e.tagName === 'g' && e.querySelector(':scope > rect'), c = parse(rect ? getComputedStyle(rect).fill : getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const out = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n; n = walker.nextNode();) {
    const e = n.parentElement;
    if (!n.data.trim() || !e.checkVisibility() || e.closest('title, .hidden, noscript')) continue;
    const style = getComputedStyle(e), a = light(parse(e.ownerSVGElement ? style.fill : style.color)), b = light(behind(e));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) out.push(n.data.trim() + ' ' + ratio.toFixed(2));
  }
  return [...new Set(out)];
})()`

// TestDashboardInBrowser opens the dashboard of 1,000 services in Chromium: by the tree for assistive
// technology each control has a name, no text lacks contrast in light and dark, the keyboard reaches the
// controls, a difference is shown, and updates are short.
func TestDashboardInBrowser(t *testing.T) {
	t.Parallel()
	control, agent := manyServices(t, 1000)
	page := startDashboard(t, "--control", control, "--agent", agent, "--interval", "1s")
	b := startBrowser(t, page)
	b.until(`document.querySelectorAll('#edges tbody tr').length > 100 && document.querySelectorAll('#proxies tbody tr').length > 100 && document.querySelectorAll('#changes button').length === 3`)

	b.call("Accessibility.enable", nil, nil)
	var tree struct {
		Nodes []struct {
			Ignored    bool
			Role, Name struct{ Value any }
			Properties []struct {
				Name  string
				Value struct{ Value any }
			}
		}
	}
	b.call("Accessibility.getFullAXTree", nil, &tree)
	named := map[string]int{}
	for _, n := range tree.Nodes {
		role, name := fmt.Sprint(n.Role.Value), fmt.Sprint(n.Name.Value)
		if n.Ignored {
			continue
		}
		switch role {
		case "button", "textbox", "searchbox", "combobox", "table", "heading", "region", "img", "image", "group", "link":
			if n.Name.Value == nil || strings.TrimSpace(name) == "" {
				t.Errorf("a %s has no name for assistive technology", role)
			}
			named[role]++
		}
	}
	for role, least := range map[string]int{"button": 4, "table": 5, "heading": 7, "region": 6, "searchbox": 1} {
		if named[role] < least {
			t.Errorf("%d nodes are a %s, want %d or more: %v", named[role], role, least, named)
		}
	}
	if wrong := eval[string](b, `[...document.querySelectorAll('h1,h2,h3,h4')].map(h => h.tagName).join(' ')`); !strings.HasPrefix(wrong, "H1 H2") || strings.Contains(wrong, "H3") {
		t.Errorf("the headings are %s", wrong)
	}
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		eval[bool](b, `new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`)
		if faint := eval[[]string](b, faintTexts); len(faint) > 0 {
			t.Errorf("%s: texts whose contrast is below 4.5: %q", scheme, faint[:min(len(faint), 5)])
		}
	}

	// By keyboard: Tab from the button of the newest change to the next one, Enter on it.
	eval[bool](b, `document.querySelector('#changes button').focus(), true`)
	b.press("Tab", 9, "")
	b.press("Enter", 13, "\r")
	b.until(`!document.getElementById('difference').hidden`)
	if text := eval[string](b, `document.querySelector('#difference pre').innerText`); !strings.Contains(text, "-  - <b>old</b>\n+  - new") {
		t.Errorf("the difference is\n%s", text)
	}
	// A finding leads to its object.
	eval[bool](b, `document.querySelector('#found button').click(), true`)
	b.until(`document.querySelector('#object pre').innerText.includes('virtualservice/a.shop was deleted at')`)
	b.chart()
	b.narrow()
	t.Run("axe", func(t *testing.T) {
		b.call("Runtime.evaluate", map[string]any{"expression": axeScript(t)}, nil)
		b.obstacles()
	})
	// How long an update blocks the page, for the picture and the longest table.
	took := eval[[]float64](b, `['top', 'status'].map(name => {
		const times = [];
		for (let i = 0; i < 5; i++) { const began = performance.now(); show(name); document.body.offsetHeight; times.push(performance.now() - began); }
		return times.sort((a, b) => a - b)[2];
	})`)
	t.Logf("with 1,000 services an update of the traffic takes %.0f ms, of the proxies %.0f ms; tasks that took more than 50 ms: %.0f ms", took[0], took[1], b.longTasks())
	if n := eval[int](b, `document.querySelectorAll('*').length`); n > 6000 {
		t.Errorf("the page of 1,000 services has %d elements, want 6,000 or fewer", n)
	}
	// The page asks its own server only, and may ask no other.
	others := eval[[]string](b, `(window.refused = [], addEventListener('securitypolicyviolation', e => refused.push(e.effectiveDirective)),
		fetch('http://127.0.0.1:9/').catch(() => {}), document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.1:9/a.png', alt: ''})),
		new Promise(done => setTimeout(done, 300)).then(() => performance.getEntriesByType('resource').map(r => r.name).filter(n => !n.startsWith(location.origin + '/') && !n.startsWith('http://127.0.0.1:9/'))))`)
	b.until(`refused.includes('connect-src') && refused.includes('img-src')`)
	for _, request := range b.requests {
		if !strings.HasPrefix(request, page) && !strings.HasPrefix(request, "data:") && request != "http://127.0.0.1:9/" && request != "http://127.0.0.1:9/a.png" {
			others = append(others, request)
		}
	}
	if len(others) > 0 || len(b.requests) < 8 {
		t.Errorf("of %d requests these go elsewhere: %q", len(b.requests), others)
	}
}

// chart uses the map of a large mesh with the mouse and the keyboard, and logs the times between frames.
func (b *browser) chart() {
	b.t.Helper()
	b.until(`document.querySelector('#map canvas').checkVisibility() && document.getElementById('legend-map').textContent.startsWith('1000 services, 3969 edges; requests to 19 services fail.')`)
	at := eval[[]float64](b, `(() => { const c = document.querySelector('#map canvas'); c.scrollIntoView({block: 'center'}); c.focus(); const r = c.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; })()`)
	pixels := func() string {
		return eval[string](b, `new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(document.querySelector('#map canvas').toDataURL()))))`)
	}
	mouse := func(kind string, x, y float64, more map[string]any) {
		of := map[string]any{"type": kind, "x": x, "y": y, "button": "left", "buttons": 1, "clickCount": 1}
		maps.Copy(of, more)
		b.call("Input.dispatchMouseEvent", of, nil)
	}
	eval[bool](b, `window.frames = [], window.going = true, (function f(t) { frames.push(t); if (going) requestAnimationFrame(f); })(performance.now()), true`)
	x, y := at[0]+at[2]/2, at[1]+at[3]/2
	whole := pixels()
	steps := []struct {
		name string
		do   func()
	}{
		{"drag", func() {
			mouse("mousePressed", x, y, nil)
			for i := range 40 {
				mouse("mouseMoved", x+float64(2*i), y+float64(i), nil)
			}
			mouse("mouseReleased", x+78, y+39, nil)
		}},
		{"wheel", func() {
			for range 10 {
				mouse("mouseWheel", x, y, map[string]any{"deltaX": 0, "deltaY": -40, "modifiers": 2, "button": "none", "buttons": 0})
			}
		}},
		{"arrow", func() { b.press("ArrowLeft", 37, "") }},
		{"plus", func() { b.press("+", 187, "+") }},
	}
	for before, i := whole, 0; i < len(steps); i++ {
		steps[i].do()
		after := pixels()
		if after == before {
			b.t.Errorf("%s changes nothing on the map", steps[i].name)
		}
		before = after
	}
	b.press("0", 48, "0")
	b.t.Logf("with 1,000 services and 3,969 edges the time between frames is %s", eval[string](b, `(() => {
		going = false;
		const times = frames.slice(1).map((t, i) => t - frames[i]).sort((a, b) => a - b), of = p => times[Math.floor(times.length * p)].toFixed(0) + ' ms';
		return of(.5) + ' (median), ' + of(.95) + ' (95 %), ' + times.at(-1).toFixed(0) + ' ms (most) of ' + times.length + ' while the map moves';
	})()`))
	// A click on a service shows its edges only.
	for range 20 { // an update may move the map at that moment
		spot := eval[[]float64](b, `(([x, y], box) => [x + box.x, y + box.y])(theMap.spot('service-13'), document.querySelector('#map canvas').getBoundingClientRect())`)
		mouse("mousePressed", spot[0], spot[1], nil)
		mouse("mouseReleased", spot[0], spot[1], nil)
		if eval[string](b, `id('filter').value`) == "service-13" {
			break
		}
	}
	b.until(`id('filter').value === 'service-13' && document.querySelectorAll('#edges tbody tr').length < 20 && document.querySelectorAll('#picture .node').length > 1`)
	eval[bool](b, `(id('filter').value = '', Object.keys(panels).forEach(show), true)`)
}

// TestDashboardDifference asks for differences of versions.
func TestDashboardDifference(t *testing.T) {
	t.Parallel()
	control, agent := manyServices(t, 1)
	page := startDashboard(t, "--control", control, "--agent", agent)
	for _, tc := range []struct {
		at, name string
		code     int
		has      []string
	}{
		{"", "b", 422, []string{"no version of virtualservice/b.shop"}},
		{now.Add(-time.Hour).Format(time.RFC3339Nano), "a", 200, []string{"--- /dev/null", "+kind: VirtualService"}},
		{now.Add(-time.Minute).Format(time.RFC3339Nano), "a", 200, []string{`-  - \u003cb\u003eold`, "+  - new"}},
		{now.Add(-time.Second).Format(time.RFC3339Nano), "a", 200, []string{"+++ /dev/null", "-  - new"}},
		{now.Format(time.RFC3339Nano), "a", 422, []string{"no version of virtualservice/a.shop of that time"}},
		{now.Add(-time.Minute).Format(time.RFC3339Nano), "b", 422, []string{"no version of virtualservice/b.shop"}},
		{"yesterday", "a", 400, []string{`"yesterday" is not the time`}},
	} {
		code, body, _ := load(t, page+"api/difference?kind=VirtualService&namespace=shop&name="+tc.name+"&at="+tc.at, nil)
		if code != tc.code {
			t.Errorf("%s of %s: status %d: %s", tc.at, tc.name, code, body)
		}
		for _, want := range tc.has {
			if !strings.Contains(body, want) {
				t.Errorf("%s of %s lacks %q: %s", tc.at, tc.name, want, body)
			}
		}
	}
}
