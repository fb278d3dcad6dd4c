// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
)

// maxOrders limits the number of stored orders; the oldest are removed first.
const maxOrders = 100

// item is an article of the shop.
type item struct {
	Name  string `json:"name"`
	Price int    `json:"price"`
}

// catalogPage is the response of the catalog.
type catalogPage struct {
	Service string `json:"service"`
	Version string `json:"version"`
	Caller  string `json:"caller"`
	Items   []item `json:"items"`
}

func registerCatalog(mux *http.ServeMux, version string) {
	items := []item{{"paddle", 40}, {"sail", 120}}
	if version != "v1" {
		items = append(items, item{"outrigger", 310})
	}
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusOK, catalogPage{Service: "catalog", Version: version, Caller: caller(r), Items: items})
	})
}

// order is one order.
type order struct {
	ID     int    `json:"id"`
	Item   string `json:"item"`
	Caller string `json:"caller"`
}

// ordersPage is the response of the orders service.
type ordersPage struct {
	Service string  `json:"service"`
	Caller  string  `json:"caller"`
	Orders  []order `json:"orders"`
}

// orders accepts orders and lists them.
type orders struct {
	mu   sync.Mutex // guards the fields below
	last int
	list []order
}

func (o *orders) register(mux *http.ServeMux) {
	mux.HandleFunc("POST /{$}", o.create)
	mux.HandleFunc("GET /{$}", o.all)
}

func (o *orders) create(w http.ResponseWriter, r *http.Request) {
	var in order
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBodyBytes)).Decode(&in); err != nil || in.Item == "" {
		http.Error(w, `an order looks like this: {"item": "paddle"}`, http.StatusBadRequest)
		return
	}
	o.mu.Lock()
	o.last++
	made := order{ID: o.last, Item: in.Item, Caller: caller(r)}
	o.list = append(o.list, made)
	o.list = o.list[max(0, len(o.list)-maxOrders):]
	o.mu.Unlock()
	writeJSON(w, http.StatusCreated, made)
}

func (o *orders) all(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	list := append([]order{}, o.list...)
	o.mu.Unlock()
	writeJSON(w, http.StatusOK, ordersPage{Service: "orders", Caller: caller(r), Orders: list})
}

// caller returns the caller's identity as verified by the Envoy in front of this server: the URI of
// the last element of x-forwarded-client-cert. It returns "" for a request that did not pass
// through Envoy.
func caller(r *http.Request) string {
	header := r.Header.Get("X-Forwarded-Client-Cert")
	last := header[strings.LastIndex(header, ",")+1:]
	for _, pair := range strings.Split(last, ";") {
		if uri, ok := strings.CutPrefix(pair, "URI="); ok {
			return strings.Trim(uri, `"`)
		}
	}
	return ""
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(text, '\n')) // the caller may be gone
}
