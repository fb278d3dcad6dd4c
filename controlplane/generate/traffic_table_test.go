// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/decision"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// routing is a VirtualService, and requests that it routes.
type routing struct {
	// name is the name of the object; its host is the name and ".test".
	name string
	// http is spec.http, in which $A and $B are routes to the applications a and b, and $NO is a
	// 404 response.
	http string
	// spec contains additional fields, which replace the host; objects are additional objects.
	spec, objects string
	// semantics is the annotation of objects that are converted from Gateway API routes.
	semantics string
	requests  []request
}

// request is a request and its expected result.
type request struct {
	// send is the method and the path; host replaces the host of the object; header is "Name:
	// value; Other: value".
	send, host, header string

	// status is the expected status, 0 for 200; answer are headers and body is the body of the
	// response.
	status int
	answer string
	body   string
	// to is the application that responds, empty for none. path and asked are the path and host
	// that it receives, if they differ from those sent. arrives are headers that it receives.
	to, path, asked string
	arrives         string
	// tries is how often the request reached an application, 0 for once. differ means that each
	// attempt reached another one. copies are applications that receive mirrored requests.
	tries  int
	differ bool
	copies []string
	// atLeast and atMost limit the time until the response.
	atLeast, atMost time.Duration
}

// decode returns the objects of the rule.
func (r *routing) decode(t testing.TB) []*model.Config {
	t.Helper()
	text := strings.NewReplacer(
		"$A", "route: [{destination: {host: shop, subset: v1}}]",
		"$B", "route: [{destination: {host: shop, subset: v2}}]",
		"$NO", "directResponse: {status: 404}",
	).Replace(strings.ReplaceAll(strings.TrimSpace(r.http), "\n", "\n  "))
	spec := cmp.Or(r.spec, "hosts: ["+r.name+".test]")
	objects := decode(t, fmt.Sprintf("kind: VirtualService\nmetadata: {name: %s, namespace: default}\nspec:\n  %s\n  http:\n  %s\n",
		r.name, strings.ReplaceAll(spec, "\n", "\n  "), text))
	if r.semantics != "" {
		objects[0].Annotations = map[string]string{"internal.istio.io/route-semantics": r.semantics}
	}
	if r.objects != "" {
		objects = append(objects, decode(t, strings.TrimSpace(r.objects)+"\n")...)
	}
	return objects
}

// TestRoutes sends requests through the real Envoy, and checks what arrives and what is returned:
// with virtual hosts inside the routes and as separate resources.
func TestRoutes(t *testing.T) {
	t.Parallel()
	rules := slices.Concat(
		matchRules(), matchOrderRules(), matchValueRules(), matchOtherValueRules(), matchCallerRules(),
		redirectRules(), rewriteRules(), answerRules(), headerRules(),
		timeoutRules(), retryRules(), faultRules(), corsRules(), mirrorRules(), delegateRules(), splitRules(),
	)
	sent := 0
	for _, r := range rules {
		sent += len(r.requests)
	}
	if sent < 150 {
		t.Errorf("the table has %d requests, want at least 150", sent)
	}
	t.Run("inside", func(t *testing.T) { testRoutes(t, "127.77.55.2", false, rules) })
	t.Run("VHDS", func(t *testing.T) { testRoutes(t, "127.77.55.3", true, rules) })
}

func testRoutes(t *testing.T, address string, vhds bool, rules []routing) {
	t.Parallel()
	w := newTraffic(t, address, vhds, rules)
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			for _, q := range r.requests {
				t.Run(strings.TrimSpace(q.send+" "+q.header), func(t *testing.T) {
					t.Parallel()
					w.check(t, &r, &q)
				})
			}
		})
	}
	t.Run("shares", func(t *testing.T) { t.Parallel(); w.checkShares(t) })
	t.Run("elsewhere", func(t *testing.T) { t.Parallel(); w.checkElsewhere(t) })
	t.Run("hash", func(t *testing.T) { t.Parallel(); w.checkHash(t) })
	t.Run("websocket", func(t *testing.T) { t.Parallel(); w.checkWebSocket(t) })
}

// check sends one request of the table.
func (w *traffic) check(t *testing.T, r *routing, q *request) {
	t.Helper()
	method, path, _ := strings.Cut(q.send, " ")
	host := cmp.Or(q.host, r.name+".test")
	header := headers(t, q.header)
	header.Set(idHeader, t.Name())
	resp, body, took := w.send(t, w.client, method, "http://"+host+path, header, "")
	if want := cmp.Or(q.status, 200); resp.StatusCode != want {
		t.Errorf("status %d, want %d; body %q", resp.StatusCode, want, body)
	}
	checkHeaders(t, "answer", resp.Header, q.answer)
	if q.body != "" && body != q.body {
		t.Errorf("body %q, want %q", body, q.body)
	}
	if took < q.atLeast || q.atMost > 0 && took > q.atMost {
		t.Errorf("took %v, want between %v and %v", took, q.atLeast, q.atMost)
	}
	tries := 0
	if q.to != "" {
		tries = cmp.Or(q.tries, 1)
	}
	w.checkRouted(t, q, decision.Request{
		Server: netip.MustParseAddr("240.1.2.3"), Port: 80, Method: method, Host: host, Path: path, Header: lowered(header),
	}, resp)
	arrived := w.journal.wait(t, t.Name(), tries+len(q.copies))
	copies, own := partition(arrived)
	if got := names(copies); !slices.Equal(got, q.copies) {
		t.Errorf("copies went to %v, want %v", got, q.copies)
	}
	for _, c := range copies {
		if c.path != path || c.host != host+"-shadow" {
			t.Errorf("the copy at %s is for %s%s", c.backend, c.host, c.path)
		}
	}
	if len(own) != tries {
		t.Fatalf("%d tries, want %d: %v", len(own), tries, own)
	}
	if tries == 0 {
		return
	}
	if distinct := len(slices.Compact(names(own))); q.differ && distinct != tries {
		t.Errorf("%d tries at %v, want each at another", tries, names(own))
	}
	last := own[tries-1]
	if !q.differ && last.backend != q.to || last.method != method {
		t.Errorf("%s at %s, want %s at %s", last.method, last.backend, method, q.to)
	}
	if want := cmp.Or(q.path, path); last.path != want {
		t.Errorf("path %q, want %q", last.path, want)
	}
	if want := cmp.Or(q.asked, host); last.host != want {
		t.Errorf("host %q, want %q", last.host, want)
	}
	checkHeaders(t, "request", last.header, q.arrives)
}

// lowered returns a header with the names in lower case.
func lowered(h http.Header) map[string][]string {
	out := map[string][]string{}
	for name, values := range h {
		out[strings.ToLower(name)] = values
	}
	return out
}

// checkRouted checks that the computed route of a request is what the Envoy did.
func (w *traffic) checkRouted(t *testing.T, q *request, r decision.Request, resp *http.Response) {
	t.Helper()
	got, err := w.routed(r)
	switch {
	case err != nil:
		t.Errorf("compute the route: %v", err)
	case len(got.Faults) > 0 && got.Aborts < 100: // by chance
	case q.to != "":
		if path, host := cmp.Or(q.path, r.Path), cmp.Or(q.asked, r.Host); len(got.Clusters) == 0 || got.Path != path || got.Host != host {
			t.Errorf("computed the host %q, the path %q and clusters %v, want %q, %q and a cluster", got.Host, got.Path, got.Clusters, host, path)
		}
	case len(got.Clusters) == 0 && int(got.Status) != resp.StatusCode:
		t.Errorf("computed the status %d (%s), want %d", got.Status, got.Reason, resp.StatusCode)
	}
}

// partition returns the mirrored requests, sorted, and the request itself.
func partition(arrived []arrival) (copies, own []arrival) {
	for _, a := range arrived {
		if strings.HasPrefix(a.backend, "copy") {
			copies = append(copies, a)
		} else {
			own = append(own, a)
		}
	}
	slices.SortFunc(copies, func(a, b arrival) int { return strings.Compare(a.backend, b.backend) })
	return copies, own
}

// names returns the applications of requests, sorted.
func names(list []arrival) (out []string) {
	for _, a := range list {
		out = append(out, a.backend)
	}
	slices.Sort(out)
	return out
}
