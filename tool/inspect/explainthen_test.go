// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// explainedThen returns answers about the past of an object: with its effect, without it, before it was
// created, after the history, and of a service.
func explainedThen() []report.Object {
	o := virtualService()
	o.Changed, o.Problems[0].Since = time.Time{}, time.Time{}
	o.Resources[0].HeldBack = 0
	for i := range o.Proxies {
		o.Proxies[i] = report.Standing{Proxy: o.Proxies[i].Proxy, State: report.Unknown}
	}
	version := past().Versions[1]
	version.Object = json.RawMessage(`{"apiVersion":"networking.istio.io/v1","kind":"VirtualService","metadata":{"name":"web"},"spec":{"hosts":["web"]}}`)
	next := report.Version{At: ago(time.Hour), Change: report.Deleted}
	o.Then = &report.Then{At: ago(2 * time.Hour), Begins: ago(50 * time.Hour), Version: &version, Next: &next, Unrecorded: report.Unrecorded{MeshSince: ago(time.Hour)}}
	blind := o
	blind.Resources, blind.Proxies, blind.Problems = nil, nil, nil
	blind.Then = &report.Then{At: o.Then.At, Version: &version, Next: &past().Versions[21], NoEffect: "HTTPRoute/shop/web has changed since, and the effect of earlier objects of its kind cannot be computed"}
	early, gone, service := report.Object{Ref: o.Ref, Then: &report.Then{At: ago(51 * time.Minute), Next: &past().Versions[21]}}, report.Object{Ref: o.Ref}, report.Object{}
	gone.Then = &report.Then{At: ago(time.Minute), Begins: ago(time.Hour)}
	mesh := o
	mesh.Ref = report.Ref{Kind: "MeshConfig", Name: report.MeshName}
	mesh.Then = &report.Then{At: o.Then.At, Version: &pastMesh().Versions[0], Next: &pastMesh().Versions[1]}
	service = report.Object{
		Ref: report.Ref{Kind: "Service", Namespace: "shop", Name: "catalog"}, Replica: "istiod-0", Found: true, InForce: true, Others: 3,
		Then: &report.Then{At: ago(10 * time.Minute), Version: &pastServices().Versions[2]},
	}
	return []report.Object{o, blind, early, gone, service, mesh}
}

// printThen prints the past of objects, and of a proxy.
func (v view) printThen(proxy report.Decided) (err error) {
	for _, o := range explainedThen() {
		err = errors.Join(err, v.object(o))
		v.say("----\n")
	}
	proxy.Then = &report.Then{At: ago(time.Hour), Unrecorded: report.Unrecorded{ServicesSince: ago(time.Minute)}}
	return errors.Join(err, v.decidedThen(proxy))
}

// TestExplainThen checks what explain asks for with --at, and its exit codes.
func TestExplainThen(t *testing.T) {
	t.Parallel()
	proxy, older := report.Proxy{Name: "catalog-1.shop", Namespace: "shop"}, report.Proxy{Name: "older-1.shop", Namespace: "shop"}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var doc any = report.Replica{Name: "istiod-0", Proxies: []report.Proxy{proxy, older}}
		if strings.HasSuffix(r.URL.Path, "explain") {
			at, err := time.Parse(time.RFC3339Nano, r.FormValue("at"))
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			o := explainedThen()[0]
			if o.Ref = (report.Ref{Kind: r.FormValue("kind"), Namespace: r.FormValue("namespace"), Name: r.FormValue("name")}); o.Namespace != "shop" && o.Kind != "MeshConfig" {
				o = report.Object{Ref: o.Ref, Then: &report.Then{At: at, Begins: at}}
			}
			o.Then.At = at
			if doc = o; r.FormValue("proxyID") != "" {
				doc = report.Decided{Proxy: proxy, Then: &report.Then{At: at}}
			}
			if o.Name == "older" || r.FormValue("proxyID") == older.Name { // an older control plane does not know the field
				doc = report.Object{Ref: o.Ref, Found: true}
			}
		}
		_ = json.NewEncoder(w).Encode(doc) // the test sees what is missing
	}))
	t.Cleanup(s.Close)
	for args, want := range map[string]struct {
		code int
		text string
	}{
		"vs/web.shop --at 2001-02-03T04:05":         {0, "VirtualService web in namespace shop, from config/web.yaml:3, at 2001-02-03 04:05:00.\n"},
		"vs web -n shop --at 2h":                    {0, "  - web\n"},
		"vs/web.other --at 2001-02-03T04:05":        {1, "There was no VirtualService web in namespace other at 2001-02-03 04:05:00.\n"},
		"catalog-1 -n shop --at 2001-02-03T04:05":   {0, "catalog-1.shop, as it is connected now, with what was in force at 2001-02-03 04:05:00:\n"},
		"mesh --at 2001-02-03T04:05":                {0, "Mesh config, from config/web.yaml:3, at 2001-02-03 04:05:00.\n"},
		"orders-1.shop --at 2h":                     {1, "; others have no past"},
		"IST0101 --at 2h":                           {2, "are for objects and proxies: the code IST0101 does not change"},
		"vs/older.shop --at 2h":                     {1, "it is older than this tool"},
		"older-1.shop --at 2h":                      {1, "it is older than this tool"},
		"vs/web.shop --at noon":                     {2, `"noon" is not a time`},
		"vs/web.shop --at 2001-02-03T04:05 -o json": {0, `"at": "2001-02-03T04:05:00`},
	} {
		out, errs, code := run(t, append([]string{"explain", "--control", s.URL}, strings.Fields(args)...)...)
		if code != want.code || !strings.Contains(out+errs, want.text) {
			t.Errorf("explain %s = %d, want %d with %q\n%s%s", args, code, want.code, want.text, out, errs)
		}
	}
}
