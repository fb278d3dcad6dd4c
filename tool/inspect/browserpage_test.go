// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/e2e/goldentest"
)

// axe is a package of npm that finds obstacles to accessibility, and the hash of its archive as npm has it.
// Its licence is MPL-2.0, so it is downloaded and no part of the repository.
const (
	axe     = "axe-core@4.14.1"
	axeHash = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
)

// axeScript returns the script of axe. It skips the test without npm or its registry.
func axeScript(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("npm", "pack", axe, "--silent", "--prefer-offline", "--pack-destination", dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("npm pack %s, which downloads the checks: %v\n%s", axe, err, out)
	}
	archives, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(archives) != 1 {
		t.Fatalf("npm pack made %q, %v", archives, err)
	}
	raw, err := os.ReadFile(archives[0])
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha512.Sum512(raw); base64.StdEncoding.EncodeToString(sum[:]) != axeHash {
		t.Fatalf("%s has the hash %x, want %s", axe, sum, axeHash)
	}
	packed, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	for files := tar.NewReader(packed); ; {
		h, err := files.Next()
		if err != nil {
			t.Fatalf("%s has no axe.min.js: %v", axe, err)
		}
		if h.Name == "package/axe.min.js" {
			script, err := io.ReadAll(files)
			if err != nil {
				t.Fatal(err)
			}
			return string(script)
		}
	}
}

// pictured returns a control plane of a small mesh that has a bit of everything, and runs its agents.
func pictured(t *testing.T) (control string) {
	t.Helper()
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	replica := report.Replica{Name: "istiod-7c6bdf8d9b-x4kqp", Version: "v1.0.0", Pushed: ago(time.Minute)}
	for i, name := range []string{"cart", "catalog-v1", "catalog-v2", "frontend", "orders"} {
		host := fmt.Sprintf("127.77.51.%d", 140+i)
		p := report.Proxy{
			Name: name + ".shop", Namespace: "shop", Role: "sidecar", Envoy: "1.39.3", Connected: ago(3 * time.Hour), Addresses: []string{host},
			Identity: "spiffe://cluster.local/ns/shop/sa/" + strings.TrimSuffix(strings.TrimSuffix(name, "-v1"), "-v2"),
			Types:    []report.Type{{Name: "cds", State: report.Synced, Since: ago(time.Minute)}, {Name: "lds", State: report.Synced, Since: ago(time.Minute)}},
		}
		if name == "orders" {
			p.Types[1].State, p.Types[1].Reason = report.Rejected, "Error adding/updating listener(s) 0.0.0.0_8080: filter has no name"
		}
		replica.Proxies = append(replica.Proxies, p)
		startAgent(t, host, name)
	}
	object := report.Ref{Kind: "VirtualService", Namespace: "shop", Name: "catalog"}
	spec := func(host string) json.RawMessage {
		return json.RawMessage(`{"apiVersion":"networking.istio.io/v1","kind":"VirtualService","metadata":{"name":"catalog","namespace":"shop"},"spec":{"hosts":["catalog"],"http":[{"route":[{"destination":{"host":"` + host + `"}}]}]}}`)
	}
	answers := map[string]any{
		"/debug/proxies": replica,
		"/debug/analyze": analyze.Result{Objects: 14, Findings: []analyze.Finding{{
			Code: "IST0101", Severity: analyze.Error, Object: analyze.Object{Kind: object.Kind, Namespace: object.Namespace, Name: object.Name}, Source: "config/catalog.yaml:12",
			Message: `spec.http[0].route[0].destination.host: no service has the host "catalogue.shop.svc.cluster.local".`, Cure: "Correct the host, or add a Service or ServiceEntry.",
		}}},
		"/debug/history": report.History{Begins: ago(time.Hour), Versions: []report.Version{
			{Ref: object, At: ago(time.Hour), Change: report.Created, Revision: "aaaa1111", Source: "config/catalog.yaml:3", Object: spec("catalog")},
			{Ref: object, At: ago(time.Minute), Change: report.Updated, Revision: "bbbb2222", Source: "config/catalog.yaml:3", Object: spec("catalogue")},
		}},
	}
	mesh := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(answers[r.URL.Path]) // the test sees what is missing
	}))
	t.Cleanup(mesh.Close)
	return mesh.URL
}

// startAgent runs the agent of a workload of the mesh that is pictured.
func startAgent(t *testing.T, host, name string) {
	t.Helper()
	var asked atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("/stats/prometheus", func(w http.ResponseWriter, _ *http.Request) {
		n := int(asked.Add(1))
		for _, e := range []struct {
			from, to     string
			well, failed int
		}{{"frontend", "cart", 30, 0}, {"frontend", "catalog-v1", 90, 0}, {"frontend", "catalog-v2", 10, 1}, {"cart", "catalog-v1", 20, 0}, {"cart", "orders", 12, 3}} {
			switch name {
			case e.from:
				_, _ = io.WriteString(w, requestsOf("source", e.from, e.to, e.well*n, e.failed*n)) // the test sees what is missing
			case e.to:
				_, _ = io.WriteString(w, requestsOf("destination", e.from, e.to, e.well*n, e.failed*n)) // see above
			}
		}
	})
	mux.HandleFunc("/debug/outage", func(w http.ResponseWriter, _ *http.Request) {
		now := time.Now()
		_ = json.NewEncoder(w).Encode(outage{Now: now, Connected: true, Parts: []lasting{ // see above
			{What: identity, Until: now.Add(11*time.Hour + 52*time.Minute), Then: "new connections fail"},
			{What: "configuration", Then: "changes are missing"},
			{What: "last good", Until: now.Add(72 * time.Hour), Then: "a new Envoy stays empty"},
		}})
	})
	listener, err := net.Listen("tcp", net.JoinHostPort(host, agentPort))
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}}
	server.Start()
	t.Cleanup(server.Close)
}

// outline is an expression for the structure of the page: what has a name, in its order.
const outline = `[...document.querySelectorAll('h1, h2, dt, caption, th, svg .label, input, button, summary, [role]')].filter(e => e.checkVisibility()).map(e => {
  const of = e.getAttribute('role'), text = ((e.closest('#wrong-list') ? e.dataset.key : e.getAttribute('aria-label')) ?? document.getElementById(e.getAttribute('aria-labelledby'))?.innerText ?? e.innerText ?? e.textContent)
    .replaceAll(/\d{4}-\d\d-\d\dT\S+/g, 'TIME').split('\n')[0];
  return (of ? of : e.tagName.toLowerCase()) + ': ' + (text || e.labels?.[0]?.innerText || e.placeholder || e.id);
}).join('\n') + '\n'`

// TestDashboardPage opens the page of a small mesh. It compares its structure with a golden file, and what
// it looks like, in coarse squares, with the picture of it in the documents; -update writes both. It walks
// through the page with the keyboard, and looks for obstacles with axe.
func TestDashboardPage(t *testing.T) {
	t.Parallel()
	b := startBrowser(t, startDashboard(t, "--control", pictured(t), "--interval", "1s"))
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": 1200, "height": 900, "deviceScaleFactor": 1, "mobile": false}, nil)
	b.scheme("light")
	b.until(`document.querySelectorAll('#edges tbody tr').length === 5 && document.querySelectorAll('#found .badge').length === 1 && document.querySelectorAll('#changes button').length === 2 && document.querySelectorAll('#clocks tbody tr').length === 5`)
	const golden, shown = "testdata/dashboard.txt", "../../docs/dashboard.png"
	if text := eval[string](b, outline); *goldentest.Update {
		writeFile(t, golden, []byte(text))
	} else if want, err := os.ReadFile(golden); err != nil || text != string(want) {
		t.Errorf("the structure of the page: (-want +got)\n%s%v", cmp.Diff(strings.Split(string(want), "\n"), strings.Split(text, "\n")), err)
	}
	light := b.screenshot()
	if *goldentest.Update {
		writeFile(t, shown, encoded(t, light))
	}
	raw, err := os.ReadFile(shown)
	if err != nil {
		t.Fatal(err)
	}
	want, err := png.Decode(bytes.NewReader(raw))
	if err != nil || len(raw) > 100_000 {
		t.Fatalf("%s has %d bytes, want 100,000 or less: %v", shown, len(raw), err)
	}
	const most = 2.5 // another browser with other fonts is 1.3 apart
	if d := apart(want, light); d > most {
		t.Errorf("the page and %s are %.1f apart, want %.1f or less: -update writes it again", shown, d, most)
	}
	eval[bool](b, `id('picture').hidden = true`)
	if d := apart(want, b.screenshot()); d <= most {
		t.Errorf("without the picture of the traffic the page is only %.1f apart: the comparison notices nothing", d)
	}
	eval[bool](b, `!(id('picture').hidden = false)`)
	b.narrow()
	b.scheme("dark")
	if d := apart(want, b.screenshot()); d < 100 {
		t.Errorf("the dark page and the light one are only %.1f apart", d)
	}
	b.walk()
	// What is wrong leads to the object, the change and the request, by the keyboard alone.
	for key, want := range map[string][2]string{
		"IST0101 VirtualService/shop/catalog": {"#object pre", "host: catalogue"},
		"updated VirtualService/shop/catalog": {"#difference pre", "-        host: catalog\n+        host: catalogue"},
		"requests cart → orders":              {"#answer .verdict", "Denied"},
	} {
		eval[bool](b, fmt.Sprintf(`document.querySelector('#wrong-list [data-key="%s"]').focus(), true`, key))
		b.press("Enter", 13, "\r")
		b.until(fmt.Sprintf("document.querySelector('%s').checkVisibility() && document.querySelector('%s').innerText.includes(%q)", want[0], want[0], want[1]))
	}
	eval[bool](b, `document.querySelector('details').open = true`)
	t.Run("axe", func(t *testing.T) {
		b.t = t
		b.audit(axeScript(t))
	})
}

// narrow looks for what does not fit at several widths: nothing is wider than the page, except for what
// scrolls on its own, and no text is cut.
func (b *browser) narrow() {
	b.t.Helper()
	for _, width := range []int{320, 600, 800, 1200} { // a zoom of 400 %, one of 200 %; the last one is that of the pictures
		b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false}, nil)
		wide := eval[[]string](b, `new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(
			[...document.querySelectorAll('body *')].filter(e => e.checkVisibility() && !e.closest('.scroll *, .hidden, datalist') &&
				(e.getBoundingClientRect().right > innerWidth + 1 || getComputedStyle(e).overflowX === 'hidden' && e.scrollWidth > e.clientWidth + 1)).map(e => e.tagName + ' ' + (e.id || e.className) + ' ' + e.innerText?.slice(0, 40))))))`)
		if len(wide) > 0 {
			b.t.Errorf("at a width of %d these do not fit: %q", width, wide)
		}
	}
}

// scheme chooses light or dark.
func (b *browser) scheme(name string) {
	b.t.Helper()
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{"name": "prefers-color-scheme", "value": name}}}, nil)
}

// obstacles looks at the page with axe.
func (b *browser) obstacles() {
	b.t.Helper()
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		for _, v := range eval[[]struct {
			ID, Help string
			Targets  []any
		}](b, `axe.run({resultTypes: ['violations']}).then(r => r.violations.map(v => ({id: v.id, help: v.help, targets: v.nodes.slice(0, 3).map(n => n.target)})))`) {
			b.t.Errorf("%s: axe finds %s: %s at %v", scheme, v.ID, v.Help, v.Targets)
		}
	}
}

// audit looks at the page with axe, and checks that with obstacles it finds them.
func (b *browser) audit(script string) {
	b.t.Helper()
	b.call("Runtime.evaluate", map[string]any{"expression": script}, nil)
	b.obstacles()
	found := eval[[]string](b, `document.querySelector('main').append(document.createElement('img')), ['aria-label', 'placeholder'].forEach(a => document.getElementById('filter').removeAttribute(a)),
		axe.run({resultTypes: ['violations']}).then(r => r.violations.map(v => v.id))`)
	for _, want := range []string{"image-alt", "label"} {
		if !slices.Contains(found, want) {
			b.t.Errorf("axe finds %q, which lacks %q", found, want)
		}
	}
}

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil { //nolint:gosec // it is for all
		t.Fatal(err)
	}
}

// screenshot returns what the browser shows.
func (b *browser) screenshot() image.Image {
	b.t.Helper()
	eval[bool](b, `new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`)
	var shot struct{ Data []byte }
	b.call("Page.captureScreenshot", map[string]any{"format": "png"}, &shot)
	picture, err := png.Decode(bytes.NewReader(shot.Data))
	if err != nil {
		b.t.Fatal(err)
	}
	return picture
}

// encoded returns a picture as a small PNG: with the 256 colours that it has most, and the nearest of these
// for the others, which are the edges of letters.
func encoded(t *testing.T, from image.Image) []byte {
	t.Helper()
	count := map[color.RGBA]int{}
	all := from.Bounds()
	for y := all.Min.Y; y < all.Max.Y; y++ {
		for x := all.Min.X; x < all.Max.X; x++ {
			count[color.RGBAModel.Convert(from.At(x, y)).(color.RGBA)]++
		}
	}
	var palette color.Palette
	for c := range count {
		palette = append(palette, c)
	}
	slices.SortFunc(palette, func(a, b color.Color) int { return count[b.(color.RGBA)] - count[a.(color.RGBA)] })
	palette = palette[:min(len(palette), 256)]
	index := map[color.RGBA]uint8{}
	for c := range count {
		index[c] = uint8(palette.Index(c))
	}
	to := image.NewPaletted(all, palette)
	for y := all.Min.Y; y < all.Max.Y; y++ {
		for x := all.Min.X; x < all.Max.X; x++ {
			to.SetColorIndex(x, y, index[color.RGBAModel.Convert(from.At(x, y)).(color.RGBA)])
		}
	}
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, to); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// apart returns how different two pictures are: the mean difference of the brightness, from 0 to 255, of
// squares that are so large that fonts do not matter. It returns 255 for pictures of different sizes.
func apart(a, b image.Image) float64 {
	const side = 60
	if a.Bounds() != b.Bounds() {
		return 255
	}
	sum, squares := 0.0, 0
	for y := a.Bounds().Min.Y; y+side <= a.Bounds().Max.Y; y += side {
		for x := a.Bounds().Min.X; x+side <= a.Bounds().Max.X; x += side {
			d := 0
			for dy := range side {
				for dx := range side {
					d += int(color.GrayModel.Convert(a.At(x+dx, y+dy)).(color.Gray).Y) - int(color.GrayModel.Convert(b.At(x+dx, y+dy)).(color.Gray).Y)
				}
			}
			sum += max(float64(d), float64(-d)) / side / side
			squares++
		}
	}
	return sum / float64(squares)
}

// press presses and releases a key.
func (b *browser) press(key string, code int, text string) {
	b.t.Helper()
	for _, kind := range []string{"keyDown", "keyUp"} {
		of := map[string]any{"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code}
		if kind == "keyDown" && text != "" {
			of["text"] = text
		}
		b.call("Input.dispatchKeyEvent", of, nil)
	}
}

// walk presses Tab from the beginning of the page to its end: everything that can be operated is reached, in
// the order of the page, and is seen to have the focus.
func (b *browser) walk() {
	b.t.Helper()
	// Updates replace rows, and keep the focus by the key of a button.
	want := eval[[]string](b, `window.nameOf = e => e.tagName + ' ' + (e.getAttribute('aria-label') ?? e.dataset.key ?? e.name ?? '' ) + ' ' + (e.closest('[id]')?.id ?? ''),
		[...document.querySelectorAll('input, button, summary, [tabindex="0"]')].filter(e => e.checkVisibility()).map(nameOf)`)
	eval[bool](b, `document.activeElement.blur(), document.body.focus(), true`)
	var got []string
	for range 3 * len(want) {
		b.press("Tab", 9, "")
		at := eval[string](b, `(() => {
			const e = document.activeElement, s = getComputedStyle(e);
			if (e === document.body) return '';
			return nameOf(e) + (s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 1 ? '' : ' without an outline');
		})()`)
		if at == "" || len(got) > 0 && at == got[0] {
			break
		}
		got = append(got, at)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		b.t.Errorf("what Tab reaches: (-want +got)\n%s", diff)
	}
}

// longTasks returns how long each update blocked the page since it was opened, in milliseconds, if more
// than 50 ms; the longest first.
func (b *browser) longTasks() []float64 {
	b.t.Helper()
	return eval[[]float64](b, `new Promise(done => {
		new PerformanceObserver(list => done(list.getEntries().map(e => e.duration).sort((a, b) => b - a))).observe({type: 'longtask', buffered: true});
		setTimeout(() => done([]), 1000);
	})`)
}
