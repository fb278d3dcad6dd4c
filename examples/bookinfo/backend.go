// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Timeouts of requests between the servers. The reviews wait longer for the ratings than the page
// waits for the reviews.
const (
	pageWait    = 3 * time.Second
	pageTries   = 2
	reviewsWait = 10 * time.Second
	maxBody     = 64 << 10
)

// endUser is the header with the user on whose behalf a request is made.
const endUser = "End-User"

// rating contains the ratings of a book.
type rating struct {
	ID      string         `json:"id"`
	Ratings map[string]int `json:"ratings"`
}

// rate responds with the ratings of a book.
func rate(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, rating{ID: r.PathValue("id"), Ratings: map[string]int{"Reviewer1": 5, "Reviewer2": 4}})
}

// stars is a rating in a review: a number of stars and their colour, or the reason why there are
// none.
type stars struct {
	Stars int    `json:"stars,omitempty"`
	Color string `json:"color,omitempty"`
	Error string `json:"error,omitempty"`
}

// review is a review of a book.
type review struct {
	Reviewer string `json:"reviewer"`
	Text     string `json:"text"`
	Rating   *stars `json:"rating,omitempty"`
}

// reviewPage contains the reviews of a book and the server that sent them.
type reviewPage struct {
	ID      string   `json:"id"`
	Version string   `json:"version"`
	Reviews []review `json:"reviews"`
}

// reviews serves reviews, with ratings from version v2 on.
type reviews struct{ version, ratings string }

func (s *reviews) register(mux *http.ServeMux) { mux.HandleFunc("GET /reviews/{id}", s.show) }

func (s *reviews) show(w http.ResponseWriter, r *http.Request) {
	page := reviewPage{ID: r.PathValue("id"), Version: s.version, Reviews: []review{
		{Reviewer: "Reviewer1", Text: "Twins, a shipwreck, and nobody asks the obvious question until the fifth act. A joy."},
		{Reviewer: "Reviewer2", Text: "Loud, fast and silly in the best way; the second half drags a little."},
	}}
	if color := map[string]string{"v2": "black", "v3": "red"}[s.version]; color != "" {
		var got rating
		err := ask(r, s.ratings+"/ratings/"+page.ID, reviewsWait, &got)
		for i := range page.Reviews {
			page.Reviews[i].Rating = &stars{Stars: got.Ratings[page.Reviews[i].Reviewer], Color: color}
			if err != nil {
				page.Reviews[i].Rating = &stars{Error: "the ratings are not available: " + err.Error()}
			}
		}
	}
	writeJSON(w, http.StatusOK, page)
}

// book contains the details of a book.
type book struct {
	ID        string `json:"id"`
	Author    string `json:"author"`
	Year      int    `json:"year"`
	Type      string `json:"type"`
	Pages     int    `json:"pages"`
	Publisher string `json:"publisher"`
	Language  string `json:"language"`
}

// details serves details. It may request the publisher from an external service.
type details struct{ external string }

func (s *details) register(mux *http.ServeMux) { mux.HandleFunc("GET /details/{id}", s.show) }

func (s *details) show(w http.ResponseWriter, r *http.Request) {
	b := book{ID: r.PathValue("id"), Author: "William Shakespeare", Year: 1595, Type: "paperback", Pages: 200, Publisher: "PublisherA", Language: "English"}
	if s.external != "" {
		var outside struct {
			Publisher string `json:"publisher"`
		}
		if err := ask(r, s.external, pageWait, &outside); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		b.Publisher = outside.Publisher
	}
	writeJSON(w, http.StatusOK, b)
}

// ask requests data from another server on behalf of a request's user.
func ask(r *http.Request, url string, wait time.Duration, to any) error {
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("call %s: %w", url, err)
	}
	if user := r.Header.Get(endUser); user != "" {
		req.Header.Set(endUser, user)
	}
	resp, err := http.DefaultClient.Do(req) // its transport uses the proxy in HTTP_PROXY
	if err != nil {
		return fmt.Errorf("call %s: %w", url, err)
	}
	defer func() { _ = resp.Body.Close() }() // the body has been read
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return fmt.Errorf("read the response of %s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s returned %s: %s", url, resp.Status, strings.TrimSpace(string(text)))
	}
	if err := json.Unmarshal(text, to); err != nil {
		return fmt.Errorf("read the response of %s: %w", url, err)
	}
	return nil
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
