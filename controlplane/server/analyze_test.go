// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"encoding/json"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
)

// TestAnalyze analyzes the objects of a running control plane, and a change of them.
func TestAnalyze(t *testing.T) {
	t.Parallel()
	const route = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: web, namespace: shop}\nspec: {hosts: [web], http: [{route: [{destination: {host: web, subset: v2}}]}]}\n"
	const gateway = "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: edge, namespace: shop}\n" +
		"spec: {servers: [{port: {number: 443, name: tls, protocol: HTTPS}, hosts: [a.example.com], tls: {mode: SIMPLE, credentialName: absent}}]}\n"
	dir := t.TempDir()
	write(t, map[string][]byte{
		filepath.Join(dir, "web.yaml"): []byte(shopService), filepath.Join(dir, "1.yaml"): machineFile("31"),
		filepath.Join(dir, "route.yaml"):   []byte(route),
		filepath.Join(dir, "invalid.yaml"): []byte("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: invalid, namespace: shop}\nspec: {host: [web]}\n"),
	})
	write(t, map[string][]byte{filepath.Join(dir, "gateway.yaml"): []byte(gateway)})
	s := serve(t, func(c *Config) {
		c.ConfigDir, c.Listen.Plaintext, c.Status.On = dir, testHost+":0", false
		c.Credentials = CredentialsConfig{Source: "fs://" + t.TempDir(), Readers: []string{"edge/gateway"}}
	})
	waitFor(t, "it is ready", s.discovery.Ready)
	select {
	case <-s.objects.credentials.Synced():
	case <-time.After(2 * time.Minute):
		t.Fatal("the credentials are not read")
	}
	ask := func(fields url.Values) (found []string) {
		resp, err := http.PostForm("http://"+s.ports.listeners.http.Addr().String()+"/debug/analyze", fields)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }() // it was only read
		var result analyze.Result
		if err := json.NewDecoder(resp.Body).Decode(&result); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("status %d, error %v", resp.StatusCode, err)
		}
		for _, f := range result.Findings {
			found = append(found, f.Code+" "+f.Object.Name+" "+filepath.Base(f.Source))
		}
		return found
	}
	for name, c := range map[string]struct {
		objects, created, deleted string
		want                      []string
	}{
		"in force":      {"", "", "", []string{"IST0106 invalid invalid.yaml:4", "IST0101 edge gateway.yaml:1", "IST0162 edge gateway.yaml:1", "OUT0011 edge gateway.yaml:1", "IST0101 web route.yaml:1"}},
		"a replacement": {strings.Replace(route, ", subset: v2", "", 1), "", "", []string{"IST0106 invalid invalid.yaml:4", "IST0101 edge gateway.yaml:1", "IST0162 edge gateway.yaml:1", "OUT0011 edge gateway.yaml:1"}},
		"an addition": {
			"apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: web, namespace: shop}\nspec: {host: web, subsets: [{name: v2, labels: {version: v2}}]}\n",
			"", "",
			[]string{"IST0106 invalid invalid.yaml:4", "IST0101 edge gateway.yaml:1", "IST0162 edge gateway.yaml:1", "OUT0011 edge gateway.yaml:1", "IST0173 web new.yaml:4"},
		},
		"what an addition brings": {strings.NewReplacer("name: web", "name: more", "hosts: [web]", "hosts: [more]", "host: web", "host: gone").Replace(route), "", "VirtualService/shop/gone", []string{"IST0101 more new.yaml:4"}},
		"what was there":          {route, "", "VirtualService/shop/gone", nil},
		"what was deleted":        {route, "VirtualService/shop/web", "VirtualService/shop/gone", []string{"IST0101 web new.yaml:4", "OUT0011 edge gateway.yaml:1"}},
		"the service is deleted":  {"", "", "ServiceEntry/shop/web", []string{"IST0101 web route.yaml:1"}},
		"a machine is deleted":    {"", "", "WorkloadEntry/shop/web-31", []string{"OUT0008 web route.yaml:1"}},
	} {
		fields := url.Values{"objects": {c.objects}, "source": {"new.yaml"}}
		if c.created != "" {
			fields.Set("created", c.created)
		}
		if c.deleted != "" {
			fields.Set("deleted", c.deleted)
			fields.Set("compare", "true")
		}
		got := ask(fields)
		slices.Sort(got)
		slices.Sort(c.want)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: the findings are %q, want %q", name, got, c.want)
		}
	}
}
