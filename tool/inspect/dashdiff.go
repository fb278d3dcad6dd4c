// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/aymanbagabas/go-udiff"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// past answers what of returns about an object, for one tab at a time.
func (f *dashboardFlags) past(of func(context.Context, report.Ref, time.Time) (string, error)) http.HandlerFunc {
	var turn sync.Mutex
	return func(w http.ResponseWriter, r *http.Request) {
		turn.Lock()
		defer turn.Unlock()
		q := r.URL.Query()
		var at time.Time
		if text := q.Get("at"); text != "" {
			var err error
			if at, err = time.Parse(time.RFC3339Nano, text); err != nil {
				http.Error(w, fmt.Sprintf("%q is not the time of a version", text), http.StatusBadRequest)
				return
			}
		}
		text, err := of(r.Context(), report.Ref{Kind: q.Get("kind"), Namespace: q.Get("namespace"), Name: q.Get("name")}, at)
		var raw []byte
		if err == nil {
			raw, err = bounded(map[string]string{"text": text})
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			return
		}
		send(w, raw)
	}
}

// newest returns the newest version of an object as YAML.
func (f *askFlags) newest(ctx context.Context, of report.Ref, _ time.Time) (string, error) {
	h, err := f.history(ctx, of, url.Values{})
	if err != nil {
		return "", err
	}
	h.Versions = slices.DeleteFunc(h.Versions, func(v report.Version) bool { return v.Ref != of })
	if len(h.Versions) == 0 {
		return "", fmt.Errorf("the control plane has recorded no version of %s", named(of))
	}
	last := h.Versions[len(h.Versions)-1]
	if last.Revision == "" {
		return "", fmt.Errorf("%s was deleted at %s", named(of), last.At.Local().Format(time.DateTime))
	}
	return f.objectOf(ctx, last)
}

// differenceOf compares the version of an object that came at a time with the one before.
func (f *askFlags) differenceOf(ctx context.Context, of report.Ref, at time.Time) (string, error) {
	h, err := f.history(ctx, of, url.Values{})
	if err != nil {
		return "", err
	}
	h.Versions = slices.DeleteFunc(h.Versions, func(v report.Version) bool { return v.Ref != of })
	i := slices.IndexFunc(h.Versions, func(v report.Version) bool { return v.At.Equal(at) })
	if i < 0 {
		return "", fmt.Errorf("the control plane has no version of %s of that time any more", named(of))
	}
	var before report.Version
	if i > 0 {
		before = h.Versions[i-1]
	}
	from, err := f.objectOf(ctx, before)
	if err != nil {
		return "", err
	}
	to, err := f.objectOf(ctx, h.Versions[i])
	if err != nil {
		return "", err
	}
	label := func(v report.Version) string {
		if v.Revision == "" {
			return "/dev/null"
		}
		return named(of) + "\t" + v.At.Local().Format(time.DateTime)
	}
	return udiff.Unified(label(before), label(h.Versions[i]), from, to), nil
}

// objectOf returns the object of a version as YAML; "" without a revision, as of a deleted object.
func (f *askFlags) objectOf(ctx context.Context, v report.Version) (string, error) {
	if v.Revision == "" {
		return "", nil
	}
	h, err := f.history(ctx, v.Ref, url.Values{"revision": {v.Revision}})
	if err != nil {
		return "", err
	}
	for _, one := range h.Versions {
		if one.Ref == v.Ref && one.Revision == v.Revision && one.Object != nil {
			text, err := yaml.JSONToYAML(one.Object)
			return string(text), err
		}
	}
	return "", fmt.Errorf("the control plane has no revision %s of %s any more", v.Revision, named(v.Ref))
}
