// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"errors"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// analyze analyzes the objects in force. Objects of the form are added, or replace those with their
// names.
func (d debugger) analyze() (answerOf, error) {
	if d.mesh.Services == nil || d.cfg.Objects == nil {
		return answerOf{}, errors.New("there is no snapshot of services yet")
	}
	var files []analyze.File
	for i, text := range d.query["objects"] {
		source := "standard input"
		if sources := d.query["source"]; i < len(sources) {
			source = sources[i]
		}
		files = append(files, analyze.File{Source: source, Data: []byte(text)})
	}
	read := analyze.Read(d.ended, files, d.query.Get("namespace"), d.query.Get("lenient") == "true")
	in := analyze.Input{Mesh: d.mesh, Manifests: read.Manifests, Objects: read.Objects, Problems: read.Problems, Credential: d.cfg.Credential}
	change := map[model.Key]*model.Config{}
	for _, c := range read.Objects {
		c.Created = time.Now() // as in a store: the order of objects depends on their age
		if stored := d.cfg.Objects.Get(c.Key); stored != nil {
			c.Created, c.From = stored.Created, stored.From
		}
		if proposedKinds[c.Kind] {
			change[c.Key] = c
		}
	}
	if len(change) > 0 && d.cfg.Propose != nil {
		in.Mesh = d.cfg.Propose(d.mesh, Proposal{Objects: change})
	}
	replaced := map[model.Key]bool{}
	for _, c := range read.Objects {
		replaced[c.Key] = true
	}
	for _, sch := range d.cfg.Objects.Schemas() {
		for _, c := range d.cfg.Objects.List(sch.Kind, "") {
			if !replaced[c.Key] {
				in.Objects = append(in.Objects, c)
			}
		}
	}
	in.Problems = append(in.Problems, d.storedProblems(replaced)...)
	for _, st := range d.source.Streams() {
		if !st.Objects {
			name := strings.TrimSuffix(st.Proxy.ID, "."+st.Proxy.Namespace)
			in.Workloads = append(in.Workloads, analyze.Workload{Namespace: st.Proxy.Namespace, Name: name, Labels: st.Proxy.Labels})
		}
	}
	result := analyze.Run(in)
	result.Skipped = read.Skipped
	return answerOf{json: result}, nil
}

// storedProblems returns the problems of reading the objects that were not replaced.
func (d debugger) storedProblems(replaced map[model.Key]bool) (out []model.Problem) {
	if d.cfg.Problems == nil {
		return nil
	}
	of := map[problemKey]bool{}
	for _, p := range d.mesh.Problems {
		of[problemKeyOf(p)] = true
	}
	for _, p := range d.cfg.Problems() {
		if !of[problemKeyOf(p.Problem)] && !replaced[p.Object] {
			out = append(out, p.Problem)
		}
	}
	return out
}
