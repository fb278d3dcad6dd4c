// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// TestEnvoyNeverOpens changes a policy of a running Envoy many times. A request that every version
// refuses must be refused at every moment, over plaintext and mutual TLS, and on new connections as
// well as on one that is kept.
func TestEnvoyNeverOpens(t *testing.T) {
	t.Parallel()
	s := startGuarded(t, nil)
	objects := s.objects
	put := func(version int) {
		s.objects = objects + "---\n" + policy("app", fmt.Sprintf(`{rules: [{to: [{operation: {ports: ["%s", "%s"]}}], when: [{key: "request.headers[x-version]", values: ["%d"]}]}]}`,
			s.ports["HTTP"], s.ports["ANY"], version))
		s.put(t, snapshot.Input{})
	}
	ask := func(client *http.Client, scheme, port, version string) error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+"://"+net.JoinHostPort(s.address, s.ports[port])+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Version", version)
		_, err = answer(client, req)
		return err
	}
	pair, _, _ := s.identity(t, "spiffe://cluster.local/ns/default/sa/caller")
	kept := s.client(&pair, "http/1.1")
	kept.Transport.(*http.Transport).DisableKeepAlives = false
	put(0)
	for _, port := range []string{"HTTP", "ANY", "TCP"} { // each is a listener, which changes by itself
		eventually(t, "version 0 is in force at "+port, func() bool { return ask(s.client(nil), "http", port, "none") != nil })
	}
	var stopped atomic.Bool
	var asked atomic.Int64
	opened := make(chan string, 5)
	for _, way := range []struct {
		client       *http.Client
		scheme, port string
	}{
		{kept, "https", "HTTP"},
		{s.client(&pair, "http/1.1"), "https", "HTTP"},
		{s.client(nil), "http", "HTTP"},
		{s.client(nil), "http", "ANY"},
		{s.client(nil), "http", "TCP"}, // a rule on a header never allows a connection that is not read
	} {
		go func() {
			for !stopped.Load() {
				if ask(way.client, way.scheme, way.port, "none") == nil {
					opened <- way.scheme + " to " + way.port
					return
				}
				asked.Add(1)
			}
			opened <- ""
		}()
	}
	fresh := s.client(nil)
	for version := 1; version <= 10; version++ {
		put(version)
		eventually(t, fmt.Sprintf("version %d is in force", version), func() bool { return ask(fresh, "http", "HTTP", fmt.Sprint(version)) == nil })
	}
	stopped.Store(true)
	for range 5 {
		if way := <-opened; way != "" {
			t.Errorf("a request over %s was served", way)
		}
	}
	if asked.Load() < 100 {
		t.Errorf("only %d requests were sent", asked.Load())
	}
	if strings.Contains(s.objects, "PORT_") {
		t.Error("the policy names no port")
	}
}
