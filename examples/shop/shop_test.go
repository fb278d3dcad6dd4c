// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// newServer serves a role on its own port.
func newServer(t *testing.T, role string, o options) *httptest.Server {
	t.Helper()
	h, err := newHandler(role, o)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// request returns the status and the body of a response.
func request(t *testing.T, method, url, body string, header map[string]string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func TestCatalogTellsItsCaller(t *testing.T) {
	t.Parallel()
	s := newServer(t, "catalog", options{version: "v2"})
	for header, want := range map[string]string{
		"": "",
		"By=spiffe://td/ns/a/sa/b;Hash=12;URI=spiffe://td/ns/c/sa/d":                 "spiffe://td/ns/c/sa/d",
		`Hash=1;URI=spiffe://first;Subject="",Hash=2;Subject="";URI="spiffe://last"`: "spiffe://last",
		"Hash=1": "",
	} {
		code, body := request(t, http.MethodGet, s.URL+"/", "", map[string]string{"X-Forwarded-Client-Cert": header})
		var p catalogPage
		if err := json.Unmarshal([]byte(body), &p); err != nil || code != http.StatusOK {
			t.Fatal(code, err, body)
		}
		if p.Caller != want || p.Version != "v2" || p.Service != "catalog" || len(p.Items) != 3 {
			t.Errorf("with %q: %s", header, body)
		}
	}
}

func TestFrontendThroughItsProxy(t *testing.T) {
	t.Parallel()
	catalog, orders := newServer(t, "catalog", options{version: "v1"}), newServer(t, "orders", options{})
	front := newServer(t, "frontend", options{catalog: catalog.URL + "/", orders: orders.URL + "/"})

	noRedirect := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := noRedirect.PostForm(front.URL+"/buy", url.Values{"item": {"paddle"}})
	if err != nil || resp.StatusCode != http.StatusSeeOther || resp.Body.Close() != nil {
		t.Fatal(resp, err)
	}
	code, body := request(t, http.MethodGet, front.URL+"/", "", nil)
	var p shopPage
	if err := json.Unmarshal([]byte(body), &p); err != nil || code != http.StatusOK {
		t.Fatal(code, err, body)
	}
	if p.Catalog.Version != "v1" || len(p.Orders.Orders) != 1 || p.Orders.Orders[0].Item != "paddle" {
		t.Errorf("page %s", body)
	}
	if code, body = request(t, http.MethodGet, front.URL+"/", "", map[string]string{"Accept": "text/html"}); code != http.StatusOK || !strings.Contains(body, "<td>paddle</td>") {
		t.Errorf("%d %s", code, body)
	}
	catalog.Close()
	if code, body = request(t, http.MethodGet, front.URL+"/", "", nil); code != http.StatusBadGateway || !strings.Contains(body, `"errors"`) {
		t.Errorf("without a catalog: %d %s", code, body)
	}
}

func TestOrdersAreBounded(t *testing.T) {
	t.Parallel()
	s := newServer(t, "orders", options{})
	for range maxOrders + 5 {
		if code, body := request(t, http.MethodPost, s.URL+"/", `{"item":"sail"}`, nil); code != http.StatusCreated {
			t.Fatal(code, body)
		}
	}
	if code, _ := request(t, http.MethodPost, s.URL+"/", `{}`, nil); code != http.StatusBadRequest {
		t.Errorf("an order of nothing: %d", code)
	}
	_, body := request(t, http.MethodGet, s.URL+"/", "", nil)
	var p ordersPage
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		t.Fatal(err)
	}
	got := []int{len(p.Orders), p.Orders[0].ID, p.Orders[len(p.Orders)-1].ID}
	if diff := cmp.Diff([]int{maxOrders, 6, maxOrders + 5}, got); diff != "" {
		t.Error(diff)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for _, args := range [][]string{nil, {"baker"}, {"catalog", "--no-such-flag"}} {
		if err := run(ctx, args, io.Discard); !errors.Is(err, errUsage) {
			t.Errorf("run %v: %v", args, err)
		}
	}
	out := &line{got: cancel}
	if err := run(ctx, []string{"orders", "--listen", "127.0.0.1:0"}, out); err != nil {
		t.Error(err)
	}
	if !strings.HasPrefix(out.String(), "orders listens on 127.0.0.1:") {
		t.Errorf("output %q", out)
	}
}

// line calls got for each write.
type line struct {
	bytes.Buffer
	got func()
}

func (l *line) Write(p []byte) (int, error) { defer l.got(); return l.Buffer.Write(p) }
