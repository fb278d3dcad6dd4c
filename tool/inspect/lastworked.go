// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

const (
	// maxTried is how many earlier states decide about a request, and triedFor how long that may take.
	maxTried = 30
	triedFor = 10 * time.Second
	// maxDiffLines is how many lines that a change removes, or adds, are printed.
	maxDiffLines = 8
)

// lastWorked is the newest state in the history of a control plane that allows a request.
type lastWorked struct {
	// Until is when the request stopped being allowed; zero if no state that allows it was found, for a
	// Reason. Changes are the versions that came then, and later ones of objects that decide about it and
	// of the mesh config.
	Until   time.Time        `json:"until,omitzero"`
	Changes []report.Version `json:"changes,omitempty"`
	// Lines are those that differ in the first of these objects, if it was updated, and decides about the
	// request or is the only one.
	Lines  []string `json:"lines,omitempty"`
	Reason string   `json:"reason,omitempty"`
	// Tried is how many states were tried, the newest first.
	Tried int `json:"tried"`
}

// lastAllowed returns what was different when a request was allowed last; nil if it is.
func (f *requestFlags) lastAllowed(ctx context.Context, d report.Decision) (*lastWorked, error) {
	if succeeds(d) {
		return nil, nil
	}
	fields, err := f.fields()
	if err != nil {
		return nil, f.cfg.Exit(exitUsage, err)
	}
	return f.lastWorked(ctx, d, fields), nil
}

// lastWorked finds out what was different when a request that is not allowed was allowed last. It tries
// the state before each change, from the newest to the oldest: states between may differ in any order.
func (f *requestFlags) lastWorked(ctx context.Context, d report.Decision, fields url.Values) *lastWorked {
	ctx, cancel := context.WithTimeout(ctx, triedFor)
	defer cancel()
	out := &lastWorked{}
	versions, err := f.versionsFor(ctx, d)
	if err != nil {
		out.Reason = err.Error()
		return out
	}
	if at, err := time.Parse(time.RFC3339Nano, fields.Get("at")); err == nil {
		versions = slices.DeleteFunc(versions, func(v report.Version) bool { return v.At.After(at) })
	}
	var later []report.Version
	for len(versions) > 0 {
		at := versions[len(versions)-1].At
		first := slices.IndexFunc(versions, func(v report.Version) bool { return v.At.Equal(at) })
		changes := versions[first:]
		versions = versions[:first]
		if !slices.ContainsFunc(changes, func(v report.Version) bool { return v.Change != report.Found }) {
			continue // there is no state before
		}
		if out.Tried == maxTried {
			out.Reason = fmt.Sprintf("none of the %d states before allows it; there are older ones", maxTried)
			return out
		}
		out.Tried++
		fields.Set("at", at.Add(-time.Nanosecond).Format(time.RFC3339Nano))
		var said *answerError
		before, err := f.decide(ctx, fields)
		switch {
		case ctx.Err() != nil:
			out.Reason = fmt.Sprintf("%s were tried in %s", count(out.Tried-1, "state", "states"), triedFor)
			return out
		case errors.As(err, &said) && said.code == http.StatusNotFound: // client or workload did not exist
		case err != nil:
			out.Reason = err.Error()
			if said != nil {
				out.Reason = said.text
			}
			return out
		case succeeds(before):
			out.Until, out.Changes = at, deciding(d, slices.Concat(changes, later))
			out.Lines = f.linesOf(ctx, d, out.Changes)
			return out
		}
		later = append(slices.DeleteFunc(slices.Clone(changes), func(v report.Version) bool { return !decidedBy(d, v.Ref) && !isMesh(v.Ref) }), later...)
	}
	out.Reason = "no state of the history allows it"
	return out
}

// versionsFor returns the versions of all objects, and of the services that a request is sent to, by time.
func (f *requestFlags) versionsFor(ctx context.Context, d report.Decision) ([]report.Version, error) {
	h, err := f.history(ctx, report.Ref{}, url.Values{})
	if err != nil {
		return nil, err
	}
	out := h.Versions
	hosts := []string{d.Host}
	if d.Client != nil {
		for _, to := range d.Client.Destinations {
			hosts = append(hosts, to.Cluster[strings.LastIndexByte(to.Cluster, '|')+1:])
		}
	}
	seen := map[string]bool{}
	for _, host := range hosts {
		parts := strings.Split(host, ".")
		if len(parts) < 3 || parts[2] != "svc" || seen[host] {
			continue
		}
		seen[host] = true
		services, err := f.history(ctx, report.Ref{Kind: string(model.KubernetesService), Namespace: parts[1], Name: parts[0]}, url.Values{})
		if err == nil { // a control plane without clusters has none
			out = append(out, services.Versions...)
		}
	}
	slices.SortStableFunc(out, func(a, b report.Version) int { return a.At.Compare(b.At) })
	return out, nil
}

// decide asks the control planes about a request.
func (f *requestFlags) decide(ctx context.Context, fields url.Values) (d report.Decision, err error) {
	addresses, err := f.addresses()
	if err != nil {
		return d, err
	}
	for _, a := range ask[report.Decision](ctx, addresses, question{path: "request", fields: fields, form: true}, f.timeout) {
		if a.err == nil {
			return a.value, nil
		}
		var said *answerError
		if err == nil || errors.As(a.err, &said) && said.code != http.StatusNotFound {
			err = a.err // one of a control plane that knows the workload says more
		}
	}
	return d, err
}

// deciding returns versions in an order in which those of the objects that decide about a request come
// first.
func deciding(d report.Decision, versions []report.Version) []report.Version {
	out := slices.Clone(versions)
	slices.SortStableFunc(out, func(a, b report.Version) int {
		switch decides, other := decidedBy(d, a.Ref), decidedBy(d, b.Ref); {
		case decides && !other:
			return -1
		case other && !decides:
			return 1
		}
		return 0
	})
	return out
}

// decidedBy reports whether an object decides about a request.
func decidedBy(d report.Decision, of report.Ref) bool {
	objects := slices.Clone(d.Objects)
	if d.Client != nil {
		objects = append(objects, d.Client.Objects...)
		for _, to := range d.Client.Destinations {
			objects = append(objects, to.Objects...)
		}
	}
	return d.Rule != nil && d.Rule.Ref == of || slices.ContainsFunc(objects, func(o report.Origin) bool { return o.Ref == of }) ||
		slices.ContainsFunc(d.Candidates, func(c report.Candidate) bool { return c.Ref == of })
}

// linesOf returns the lines that differ in the object of a change that decides about a request, or in
// the only one.
func (f *requestFlags) linesOf(ctx context.Context, d report.Decision, changes []report.Version) (lines []string) {
	if len(changes) > 1 && !decidedBy(d, changes[0].Ref) || changes[0].Kind == string(model.KubernetesService) || changes[0].Change != report.Updated {
		return nil
	}
	text, err := f.differenceOf(ctx, changes[0].Ref, changes[0].At)
	if err != nil {
		return nil // the version is named
	}
	shown := map[byte]int{} // lines by sign
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "--- ") || strings.HasPrefix(line, "+++ ") || line[0] != '+' && line[0] != '-' {
			continue
		}
		if sign := line[0]; shown[sign] < maxDiffLines {
			lines = append(lines, strings.TrimRight(line, "\n"))
		} else if shown[sign] == maxDiffLines {
			lines = append(lines, line[:1]+"…")
		}
		shown[line[0]]++
	}
	return lines
}

// lastWorked prints what was different when a request was allowed last.
func (v view) lastWorked(l lastWorked) {
	if l.Until.IsZero() {
		v.say("\nWhen it was allowed last is not known: %s\n", l.Reason)
		return
	}
	then := ", when this changed"
	if slices.ContainsFunc(l.Changes, func(c report.Version) bool { return c.At.After(l.Until) }) {
		then = "; then, and later, this changed"
	}
	v.say("\nIt was allowed until %s%s:\n", v.clock(l.Until), then)
	dir, _ := os.Getwd() // without it, sources are not shortened
	shown, left := cut(v.flags, l.Changes)
	for _, one := range shown {
		one.Source = strings.TrimPrefix(one.Source, dir+string(filepath.Separator))
		text := strings.TrimSuffix(briefly(one.Ref)+", "+one.Source, ", ")
		if one.At.After(l.Until) {
			text += ", at " + v.clock(one.At)
		}
		v.field(one.Change, text)
	}
	v.more(left)
	for _, line := range l.Lines {
		v.say("    %s\n", line)
	}
}
