// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"html/template"
	"net/http"
	"strings"
)

// productPage serves a book, as HTML for browsers and as JSON for other clients.
type productPage struct{ details, reviews string }

// product is the content of the page. Data that is unavailable is replaced by a sentence.
type product struct {
	Title        string      `json:"title"`
	User         string      `json:"user,omitempty"`
	Details      *book       `json:"details,omitempty"`
	DetailsError string      `json:"detailsError,omitempty"`
	Reviews      *reviewPage `json:"reviews,omitempty"`
	ReviewsError string      `json:"reviewsError,omitempty"`
}

func (s *productPage) register(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", s.show)
	mux.HandleFunc("GET /productpage", s.show)
	mux.HandleFunc("POST /login", func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "user", Value: r.FormValue("username"), Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
		http.Redirect(w, r, "/productpage", http.StatusSeeOther)
	})
	mux.HandleFunc("POST /logout", func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "user", Path: "/", MaxAge: -1, HttpOnly: true, SameSite: http.SameSiteStrictMode})
		http.Redirect(w, r, "/productpage", http.StatusSeeOther)
	})
}

func (s *productPage) show(w http.ResponseWriter, r *http.Request) {
	if cookie, err := r.Cookie("user"); err == nil && r.Header.Get(endUser) == "" {
		r.Header.Set(endUser, cookie.Value)
	}
	p := product{Title: "The Comedy of Errors", User: r.Header.Get(endUser), Details: &book{}, Reviews: &reviewPage{}}
	if err := ask(r, s.details+"/details/0", pageWait, p.Details); err != nil {
		p.Details, p.DetailsError = nil, "Sorry, the details of this book are not available: "+err.Error()
	}
	var err error
	for range pageTries {
		if err = ask(r, s.reviews+"/reviews/0", pageWait, p.Reviews); err == nil {
			break
		}
	}
	if err != nil {
		p.Reviews, p.ReviewsError = nil, "Sorry, the reviews of this book are not available: "+err.Error()
	}
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		writeJSON(w, http.StatusOK, p)
		return
	}
	var page bytes.Buffer
	if err := template.Must(template.New("page").Funcs(template.FuncMap{"stars": func(n int) string { return strings.Repeat("★", n) }}).Parse(pageTemplate)).Execute(&page, p); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = page.WriteTo(w) // the browser may be gone
}

const pageTemplate = `<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{{.Title}}</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:42rem;margin:2rem auto;padding:0 1rem}dt{color:#555}.error{color:#a00}.black{color:#000}.red{color:#c00}</style>
</head>
<body>
<form method="post" action="/{{if .User}}logout{{else}}login{{end}}">{{if .User}}{{.User}} <button>sign out</button>{{else}}<input name="username" placeholder="jason"> <button>sign in</button>{{end}}</form>
<h1>{{.Title}}</h1>
{{with .DetailsError}}<p class="error">{{.}}</p>{{end}}
{{with .Details}}<dl><dt>Author</dt><dd>{{.Author}}</dd><dt>Year</dt><dd>{{.Year}}</dd><dt>Publisher</dt><dd>{{.Publisher}}</dd><dt>Pages</dt><dd>{{.Pages}}</dd></dl>{{end}}
{{with .ReviewsError}}<p class="error">{{.}}</p>{{end}}
{{with .Reviews}}<h2>Reviews, served by {{.Version}}</h2>
{{range .Reviews}}<blockquote>{{.Text}}<br>{{with .Rating}}{{if .Error}}<span class="error">{{.Error}}</span>{{else}}<span class="{{.Color}}">{{stars .Stars}}</span>{{end}}{{end}} <i>{{.Reviewer}}</i></blockquote>{{end}}{{end}}
</body>
</html>
`
