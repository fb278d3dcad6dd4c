// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"net/url"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/xdsproxy"
)

// TestAsked checks which requests a tap selects.
func TestAsked(t *testing.T) {
	t.Parallel()
	web, none := "spiffe://cluster.local/ns/shop/sa/web", (*string)(nil)
	request := func(method, path string, code uint64, peer *string, sent bool) *xdsproxy.Request {
		return &xdsproxy.Request{Method: method, Path: path, Code: code, Peer: peer, Sent: sent, UserAgent: "curl", Headers: map[string]string{"x-team": "red"}}
	}
	received, failed, sent, plain := request("GET", "/items/1", 200, &web, false), request("POST", "/", 503, &web, false), request("GET", "/items", 404, none, true), request("GET", "/", 0, none, false)
	for query, want := range map[string][]*xdsproxy.Request{
		"":                     {received, failed, sent, plain},
		"method=post":          {failed},
		"path=/items":          {received, sent},
		"status=5xx":           {failed},
		"status=404,0":         {sent, plain},
		"source=web":           {received, failed},
		"source=shop/web":      {received, failed},
		"source=other/web":     nil,
		"source=eb":            nil,
		"source=none":          {plain},
		"source=" + web:        {received, failed},
		"status=2xx&path=/ite": {received},
	} {
		fields, err := url.ParseQuery("for=1s&rate=5&direction=both&sample=7&" + query)
		if err != nil {
			t.Fatal(err)
		}
		a, err := parseAsked(fields)
		if err != nil || a.sample != 7 || a.rate != 5 || strings.Join(a.logs, " ") != "outrigger.record outrigger.record_sent" {
			t.Fatalf("%s: %+v, %v", query, a, err)
		}
		var got []*xdsproxy.Request
		for _, r := range []*xdsproxy.Request{received, failed, sent, plain} {
			if a.selection(nil).Keep(r) {
				got = append(got, r)
			}
			if r.UserAgent != "" || r.Headers != nil {
				t.Errorf("%s: headers are shown: %+v", query, r)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %d requests, want %d", query, len(got), len(want))
			continue
		}
		for i := range got {
			if got[i] != want[i] {
				t.Errorf("%s: request %d is %+v", query, i, got[i])
			}
		}
	}
	for query, want := range map[string]string{
		"direction=up": "inbound, outbound or both", "sample=0": "from 1 to 100", "sample=x": "from 1 to 100", "rate=10001": "from 1 to 10000",
		"status=20x": "404,5xx", "status=6xx": "404,5xx", "status=404,": "404,5xx", "status=600": "404,5xx",
	} {
		fields, err := url.ParseQuery("for=1s&" + query)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseAsked(fields); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", query, err, want)
		}
	}
}
