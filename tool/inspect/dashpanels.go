// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// Bounds of the lists of the dashboard. The page says how many entries are omitted.
const (
	maxShown   = 1000 // proxies, workloads
	maxEdges   = 5000
	maxFound   = 500 // findings
	maxChanges = 100
	maxUnasked = 20 // proxies that do not answer
)

// panel is a part of what the dashboard shows.
type panel struct {
	every   time.Duration // between two collections
	retry   time.Duration // the same after an error
	most    time.Duration // of a collection
	collect func(context.Context) (any, error)

	turn sync.Mutex // guards the fields below, and is held during a collection
	last collected
	text []byte    // last, in JSON
	at   time.Time // the end of the last collection
}

// collected is what the last collections of a panel found.
type collected struct {
	At    time.Time       `json:"at,omitzero"`     // of Data
	Every float64         `json:"every_seconds"`   // until the next collection
	Error string          `json:"error,omitempty"` // of the last collection; Data is older then
	Data  json.RawMessage `json:"data,omitempty"`  // of the last collection without an error
}

// answer returns the panel in JSON. It collects the panel unless that has just been done: requests
// at the same time wait for one collection.
func (p *panel) answer(ctx context.Context) []byte {
	p.turn.Lock()
	defer p.turn.Unlock()
	if p.text != nil && time.Since(p.at).Seconds() < p.last.Every {
		return p.text
	}
	ctx, cancel := context.WithTimeout(ctx, p.most)
	defer cancel()
	data, err := p.collect(ctx)
	p.at = time.Now()
	p.last.Every, p.last.Error = p.every.Seconds(), ""
	var raw []byte
	if err == nil {
		raw, err = bounded(data)
	}
	if err != nil {
		p.last.Every, p.last.Error = p.retry.Seconds(), err.Error()
	} else {
		p.last.At, p.last.Data = p.at, raw
	}
	if p.text, err = json.Marshal(p.last); err != nil {
		p.text = []byte(`{"error":"the answer is not JSON"}`)
	}
	return p.text
}

// bounded returns data in JSON, or an error if they are too long for a page.
func bounded(data any) ([]byte, error) {
	raw, err := json.Marshal(data)
	if err == nil && len(raw) > maxPageAnswer {
		err = fmt.Errorf("the answer has more than %d bytes: ask for fewer proxies with -n NAMESPACE", maxPageAnswer)
	}
	return raw, err
}

// panels returns the panels by name.
func (f *dashboardFlags) panels() map[string]*panel {
	m := meter{timeout: f.timeout}
	own := *f // up asks with the same flags, and needs what is so now
	own.memory, f = newMemory(), &own
	of := func(intervals time.Duration, collect func(context.Context) (any, error)) *panel {
		return &panel{every: intervals * f.interval, retry: f.interval, most: 3 * f.timeout, collect: collect}
	}
	return map[string]*panel{
		"status":   of(1, f.proxies),
		"top":      of(1, func(ctx context.Context) (any, error) { return f.traffic(ctx, &m) }),
		"outage":   of(slowPanels, f.outages),
		"findings": of(slowPanels, f.findings),
		"history":  of(1, f.changes),
	}
}

// proxies collects what status prints.
func (f *dashboardFlags) proxies(ctx context.Context) (any, error) {
	addresses, err := f.addresses()
	if err != nil {
		return nil, err
	}
	answers := withGone(ask[report.Replica](ctx, addresses, question{path: "proxies", memory: f.memory}, f.timeout))
	var complaints bytes.Buffer
	if complain(&complaints, answers) == len(answers) {
		return nil, said(&complaints, nil)
	}
	omitted := 0
	for i := range answers {
		list := &answers[i].value.Proxies
		slices.SortStableFunc(*list, func(a, b report.Proxy) int { return cmp.Compare(severity(worst(b)), severity(worst(a))) })
		omitted += max(0, len(*list)-maxShown)
		*list = (*list)[:min(len(*list), maxShown)]
	}
	return struct {
		Controls []asked `json:"control_planes"`
		Omitted  int     `json:"omitted,omitempty"`
	}{askedOf(answers, nil, known{}), omitted}, nil
}

// traffic collects what top prints. If no tab was open for a while, it begins again.
func (f *dashboardFlags) traffic(ctx context.Context, m *meter) (any, error) {
	var complaints bytes.Buffer
	proxies, others, err := f.choose(ctx, &complaints, "")
	if err != nil {
		return nil, said(&complaints, err)
	}
	for p, s := range m.last {
		if time.Since(s.at) > 3*f.interval+f.timeout {
			delete(m.last, p)
		}
	}
	t := m.measure(ctx, proxies, others)
	t.sort("rate")
	slices.SortStableFunc(t.Edges, func(a, b flow) int { return cmp.Compare(b.failed/max(b.Requests, 1), a.failed/max(a.Requests, 1)) })
	out := struct {
		traffic
		Omitted int    `json:"omitted,omitempty"` // edges
		Note    string `json:"note,omitempty"`    // why there is nothing
	}{traffic: t}
	if len(t.Workloads)+len(t.Edges) == 0 && t.Proxies > 0 {
		var note strings.Builder
		f.tables(&note, t, 0)
		out.Note = note.String()
	}
	out.Omitted = max(0, len(t.Edges)-maxEdges)
	out.Workloads, out.Edges = t.Workloads[:min(len(t.Workloads), maxShown)], t.Edges[:min(len(t.Edges), maxEdges)]
	if left := len(t.Errors) - maxUnasked; left > 0 {
		out.Errors = append(t.Errors[:maxUnasked:maxUnasked], fmt.Sprintf("and %d more proxies", left))
	}
	if len(t.Errors) > 0 {
		out.Errors = append(out.Errors, reachCure)
	}
	return out, nil
}

// outages collects what status --agent prints.
func (f *dashboardFlags) outages(ctx context.Context) (any, error) {
	var complaints bytes.Buffer
	proxies, _, err := f.choose(ctx, &complaints, "")
	if err != nil {
		return nil, said(&complaints, err)
	}
	type named struct {
		Proxy string `json:"proxy"`
		outage
	}
	list := make([]named, len(proxies))
	for i, o := range outagesOf(ctx, proxies, f.timeout) {
		list[i] = named{proxies[i].name, o}
	}
	return list, nil
}

// findings collects what analyze prints.
func (f *dashboardFlags) findings(ctx context.Context) (any, error) {
	r, err := (&analyzeFlags{askFlags: f.askFlags}).ask(ctx, nil)
	if left := len(r.Findings) - maxFound; left > 0 {
		r.Findings, r.Unlisted = r.Findings[:maxFound], r.Unlisted+left
	}
	return r, err
}

// changes collects what history prints.
func (f *dashboardFlags) changes(ctx context.Context) (any, error) {
	h, err := f.history(ctx, report.Ref{}, url.Values{})
	if left := len(h.Versions) - maxChanges; left > 0 {
		h.Versions, h.Omitted = h.Versions[left:], h.Omitted+left
	}
	return h, err
}

// explain answers what explain request prints, for one tab at a time. Tokens are not accepted: they
// do not belong into a URL.
func (f *dashboardFlags) explain() http.HandlerFunc {
	var turn sync.Mutex
	return func(w http.ResponseWriter, r *http.Request) {
		turn.Lock()
		defer turn.Unlock()
		q, all := r.URL.Query(), f.askFlags
		all.all = true
		of := requestFlags{
			askFlags: all, from: q.Get("from"), to: q.Get("to"), at: q.Get("at"), method: cmp.Or(q.Get("method"), http.MethodGet), path: cmp.Or(q.Get("path"), "/"),
			host: q.Get("host"), address: q.Get("address"), sni: q.Get("sni"), headers: q["header"],
		}
		port, err := strconv.ParseUint(cmp.Or(q.Get("port"), "0"), 10, 16)
		if err != nil {
			http.Error(w, fmt.Sprintf("the port %q is not a number from 1 to 65535", q.Get("port")), http.StatusBadRequest)
			return
		}
		of.port = uint16(port)
		var complaints, text bytes.Buffer
		d, err := of.decision(r.Context(), &complaints)
		if err != nil {
			http.Error(w, said(&complaints, err).Error(), http.StatusUnprocessableEntity)
			return
		}
		shortenToHere(&d)
		v := view{out: &text, now: time.Now(), flags: &of.askFlags}
		err = v.decision(d.Decision)
		v.related(d)
		raw, tooLong := bounded(struct {
			Decision report.Decision `json:"decision"`
			Text     string          `json:"text"`
		}{d.Decision, text.String()})
		if err = cmp.Or(err, tooLong); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		send(w, raw)
	}
}

// said returns an error with the complaints of a function that printed some, or with its error.
func said(complaints io.Reader, err error) error {
	text, _ := io.ReadAll(complaints) // of a buffer: cannot fail
	if s := strings.TrimSpace(string(text)); s != "" {
		return errors.New(s)
	}
	return err
}
