// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"strings"
	"time"
)

const askTimeout = 5 * time.Second

// frontend renders the page of the shop from the responses of the two other services.
type frontend struct {
	catalog, orders string
	client          *http.Client
	page            *template.Template
}

// shopPage is the content of the page.
type shopPage struct {
	Service string       `json:"service"`
	Catalog *catalogPage `json:"catalog,omitempty"`
	Orders  *ordersPage  `json:"orders,omitempty"`
	Errors  []string     `json:"errors,omitempty"`
}

func newFrontend(catalog, orders string) *frontend {
	return &frontend{
		catalog: catalog,
		orders:  orders,
		// The transport of net/http uses the proxy in HTTP_PROXY.
		client: &http.Client{Timeout: askTimeout},
		page:   template.Must(template.New("shop").Parse(pageTemplate)),
	}
}

func (f *frontend) register(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", f.show)
	mux.HandleFunc("POST /buy", f.buy)
}

func (f *frontend) show(w http.ResponseWriter, r *http.Request) {
	p := shopPage{Service: "frontend", Catalog: &catalogPage{}, Orders: &ordersPage{}}
	code := http.StatusOK
	if err := f.ask(r, f.catalog, p.Catalog); err != nil {
		p.Catalog, p.Errors, code = nil, append(p.Errors, err.Error()), http.StatusBadGateway
	}
	if err := f.ask(r, f.orders, p.Orders); err != nil {
		p.Orders, p.Errors, code = nil, append(p.Errors, err.Error()), http.StatusBadGateway
	}
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		writeJSON(w, code, p)
		return
	}
	var page bytes.Buffer
	if err := f.page.Execute(&page, p); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = page.WriteTo(w) // the browser may be gone
}

// buy creates an order from the form of the page.
func (f *frontend) buy(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBodyBytes)
	body, err := json.Marshal(order{Item: r.FormValue("item")})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, f.orders, bytes.NewReader(body))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if err := f.do(req, http.StatusCreated, &order{}); err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// ask requests a page from another service. It forwards the header x-version, so that routes can
// match it.
func (f *frontend) ask(r *http.Request, url string, to any) error {
	ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("call %s: %w", url, err)
	}
	if v := r.Header.Get("X-Version"); v != "" {
		req.Header.Set("X-Version", v)
	}
	return f.do(req, http.StatusOK, to)
}

func (f *frontend) do(req *http.Request, want int, to any) error {
	resp, err := f.client.Do(req)
	if err != nil {
		return fmt.Errorf("call %s: %w", req.URL, err)
	}
	defer func() { _ = resp.Body.Close() }() // the body has been read
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBodyBytes))
	if err != nil {
		return fmt.Errorf("read the response of %s: %w", req.URL, err)
	}
	if resp.StatusCode != want {
		return fmt.Errorf("%s returned %s: %s", req.URL, resp.Status, strings.TrimSpace(string(text)))
	}
	if err := json.Unmarshal(text, to); err != nil {
		return fmt.Errorf("read the response of %s: %w", req.URL, err)
	}
	return nil
}

const pageTemplate = `<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Outrigger shop</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:42rem;margin:2rem auto;padding:0 1rem}td,th{padding:.2rem 1rem .2rem 0;text-align:left}code{color:#555}.error{color:#a00}</style>
</head>
<body>
<h1>Outrigger shop</h1>
{{range .Errors}}<p class="error">{{.}}</p>{{end}}
{{with .Catalog}}<p>The catalog of version <b>{{.Version}}</b> saw us as <code>{{.Caller}}</code>. Reload to meet the other one.</p>
<form method="post" action="/buy"><table>
{{range .Items}}<tr><td>{{.Name}}</td><td>{{.Price}}</td><td><button name="item" value="{{.Name}}">buy</button></td></tr>
{{end}}</table></form>{{end}}
{{with .Orders}}<h2>Orders</h2>
<table>{{range .Orders}}<tr><td>{{.ID}}</td><td>{{.Item}}</td><td><code>{{.Caller}}</code></td></tr>
{{else}}<tr><td>none yet</td></tr>{{end}}</table>{{end}}
</body>
</html>
`
