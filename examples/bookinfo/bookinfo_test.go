// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// serveRole serves the paths of a role.
func serveRole(t *testing.T, register func(*http.ServeMux)) string {
	t.Helper()
	mux := http.NewServeMux()
	register(mux)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

// fetch requests a page as a browser or as another client.
func fetch(t *testing.T, url, accept, user string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	req.AddCookie(&http.Cookie{Name: "user", Value: user})
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // it has been read to the end
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s answers %d, %v: %s", url, resp.StatusCode, err, body)
	}
	return string(body)
}

// TestPage assembles the page from the four roles, with each version of the reviews.
func TestPage(t *testing.T) {
	t.Parallel()
	var user string
	ratings := serveRole(t, func(mux *http.ServeMux) {
		mux.HandleFunc("GET /ratings/{id}", func(w http.ResponseWriter, r *http.Request) {
			user = r.Header.Get(endUser)
			rate(w, r)
		})
	})
	book := serveRole(t, (&details{}).register)
	for version, want := range map[string]string{"v1": "", "v2": `class="black">★★★★★`, "v3": `class="red">★★★★★`} {
		opinion := serveRole(t, (&reviews{version: version, ratings: ratings}).register)
		page := serveRole(t, (&productPage{details: book, reviews: opinion}).register) + "/productpage"
		if html := fetch(t, page, "text/html", "<jason>"); !strings.Contains(html, "William Shakespeare") || !strings.Contains(html, want) || strings.Contains(html, "<jason>") {
			t.Errorf("%s: %s", version, html)
		}
		var p product
		if err := json.Unmarshal([]byte(fetch(t, page, "application/json", "jason")), &p); err != nil || p.Reviews.Version != version || p.User != "jason" {
			t.Errorf("%s: %+v, %v", version, p, err)
		}
	}
	if user != "jason" {
		t.Errorf("the ratings are asked for the user %q", user)
	}
}

// TestPageWithoutTheOthers shows the available data and says what is unavailable.
func TestPageWithoutTheOthers(t *testing.T) {
	t.Parallel()
	gone := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(gone.Close)
	opinion := serveRole(t, (&reviews{version: "v2", ratings: gone.URL}).register)
	page := serveRole(t, (&productPage{details: gone.URL, reviews: opinion}).register) + "/productpage"
	var p product
	if err := json.Unmarshal([]byte(fetch(t, page, "", "")), &p); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(p.DetailsError, "404") || !strings.Contains(p.Reviews.Reviews[0].Rating.Error, "404") {
		t.Errorf("%+v", p)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"nobody"}, {"details", "--no-such-flag"}} {
		if err := run(context.Background(), args, io.Discard); err == nil || !strings.Contains(err.Error(), usage) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// Each role responds at /, for clients that know only its address.
func TestRoot(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"productpage", "details", "reviews", "ratings"} {
		url := serveRole(t, func(mux *http.ServeMux) {
			if err := register(mux, role, options{details: "http://127.0.0.1:0", reviews: "http://127.0.0.1:0", ratings: "http://127.0.0.1:0", version: "v1"}); err != nil {
				t.Fatal(err)
			}
		})
		fetch(t, url+"/", "application/json", "") // fails unless the status is 200
	}
}
