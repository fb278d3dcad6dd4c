// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// changing is a control plane whose answers change, by path; nil is one that does not answer.
type changing struct{ atomic.Pointer[map[string]any] }

func (c *changing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answers := c.Load()
	if answers == nil {
		panic(http.ErrAbortHandler)
	}
	_ = json.NewEncoder(w).Encode((*answers)[r.URL.Path]) // the test sees what is missing
}

// stateOfMesh returns the answers of a control plane of two proxies, and what is wrong with it.
func stateOfMesh(name string, lost bool, findings ...analyze.Finding) *map[string]any {
	replica := report.Replica{Name: "istiod-0", Version: "v1.0.0", Pushed: time.Now().Add(-time.Minute), Credentials: []report.Credential{
		{What: "CA certificate", Until: time.Now().Add(5 * 24 * time.Hour), Soon: true, Then: "no certificate is signed", By: "the owner of the files in " + name},
	}}
	for i, of := range []string{name + "-1.shop", "web-1.shop"} {
		p := report.Proxy{
			Name: of, Namespace: "shop", Role: "sidecar", Connected: time.Now().Add(-time.Hour), Addresses: []string{fmt.Sprintf("127.77.51.%d", 150+i)}, Identity: "spiffe://cluster.local/ns/shop/sa/" + name,
			Types: []report.Type{{Name: "cds", State: report.Synced, Since: time.Now().Add(-time.Minute)}, {Name: "lds", State: report.Synced, Since: time.Now().Add(-time.Minute)}},
		}
		if lost && i == 1 {
			p.Types = []report.Type{{Name: "-", State: report.Gone, Since: time.Now().Add(-time.Minute)}}
			replica.Gone = append(replica.Gone, p)
			continue
		}
		replica.Proxies = append(replica.Proxies, p)
	}
	at := time.Now().Add(-time.Minute)
	return &map[string]any{
		"/debug/proxies": replica, "/debug/analyze": analyze.Result{Objects: 3, Findings: findings},
		"/debug/history": report.History{Begins: at, Versions: []report.Version{{Ref: report.Ref{Kind: "VirtualService", Namespace: "shop", Name: name}, At: at, Change: report.Created, Revision: "aaaa1111", Source: "config/" + name + ".yaml:3"}}},
	}
}

// TestDashboardStates changes what a control plane answers while the page is open: very long names and a
// finding, which is then resolved; a proxy that is lost; no answer at all. In each state everything fits, no
// text is cut, and axe finds no obstacle.
func TestDashboardStates(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a-very-long-name-of-a-workload-", 8) + "end"
	finding := analyze.Finding{
		Code: "IST0101", Severity: analyze.Error, Object: analyze.Object{Kind: "VirtualService", Namespace: "shop", Name: long},
		Source: "config/" + long + ".yaml:1", Message: "No service has the host " + long + ".", Cure: "Correct it.",
	}
	var state changing
	state.Store(stateOfMesh(long, false, finding))
	control := httptest.NewServer(&state)
	t.Cleanup(control.Close)
	b := startBrowser(t, startDashboard(t, "--control", control.URL, "--interval", "1s"))
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{"name": "prefers-reduced-motion", "value": "reduce"}}}, nil)
	b.until(`document.querySelectorAll('#found .badge').length === 1 && document.querySelectorAll('#changes button').length === 1`)
	if moving := eval[int](b, `document.getAnimations().length`); moving > 0 {
		t.Errorf("%d parts of the page move", moving)
	}
	script := ""
	t.Run("axe", func(t *testing.T) { script = axeScript(t) })
	look := func(name string) {
		t.Helper()
		b.narrow()
		if script != "" {
			b.obstacles()
		}
		t.Logf("%s: looked at", name)
	}
	if script != "" {
		b.call("Runtime.evaluate", map[string]any{"expression": script}, nil)
	}
	look("long names")

	eval[bool](b, `document.querySelector('#found button').click(), true`)
	b.until(`!id('object').hidden`)
	if text := eval[string](b, `document.querySelector('#object .verdict').innerText`); !strings.Contains(text, "Asked at ") {
		t.Errorf("the object is shown without the time at which it was so: %q", text)
	}
	eval[bool](b, `document.querySelector('#wrong-list [data-key^="IST0101"]').focus(), true`)
	state.Store(stateOfMesh("catalog", true))
	b.until(`document.querySelectorAll('#found .badge').length === 0 && document.querySelector('#proxies').innerText.includes('GONE') && !document.querySelector('#wrong-list').innerText.includes('IST0101')`)
	if at := eval[string](b, `document.activeElement.id`); at != "h-wrong" {
		t.Errorf("after the finding is resolved, %q has the focus, want the heading of its list", at)
	}
	if text := eval[string](b, `id('wrong-list').innerText`); !strings.Contains(text, "gone\nweb-1.shop") || !strings.Contains(text, "CA certificate: ends in 4d: no certificate is signed; renewed by the owner of") {
		t.Errorf("what is wrong is\n%s", text)
	}
	look("a proxy is lost")

	state.Store(nil)
	b.until(`!id('unreachable').hidden && /What you see is [1-9][0-9]*s old\./.test(id('unreachable').innerText) && /^Data of [1-9]/.test(id('state').innerText)`)
	eval[bool](b, `scrollTo(0, document.body.scrollHeight), true`)
	b.until(`scrollY > 0 && id('unreachable').getBoundingClientRect().top >= 0 && id('unreachable').getBoundingClientRect().bottom < innerHeight`)
	look("no control plane answers")
	state.Store(stateOfMesh("catalog", false))
	b.until(`id('unreachable').hidden && id('state').innerText.startsWith('Live') && !document.querySelector('#proxies').innerText.includes('GONE')`)
}
