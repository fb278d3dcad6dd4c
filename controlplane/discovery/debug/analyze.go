// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// analyze analyzes the objects in force. Objects of the form are added, or replace those with their
// names; those in deleted are left out. With compare, only the findings that this brings are returned.
// Those in created did not exist before, although the control plane may not have noticed yet.
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
	created, gone, err := d.keys("created")
	if err != nil {
		return answerOf{}, err
	}
	replaced, change, err := d.keys("deleted")
	if err != nil {
		return answerOf{}, err
	}
	for _, c := range read.Objects {
		c.Created = time.Now() // as in a store: the order of objects depends on their age
		if stored := d.cfg.Objects.Get(c.Key); stored != nil && !created[c.Key] {
			c.Created, c.From = stored.Created, stored.From
		}
		if replaced[c.Key] = true; snapshot.InForce(c.Kind) {
			change[c.Key] = c
		}
	}
	in := d.analyzed(d.after(change), replaced)
	in.Manifests, in.Objects, in.Problems = read.Manifests, append(in.Objects, read.Objects...), append(in.Problems, read.Problems...)
	if d.query.Get("compare") == "true" {
		return answerOf{json: analyze.Compare(d.analyzed(d.after(gone), created), in)}, nil
	}
	result := analyze.Run(in)
	result.Skipped = read.Skipped
	return answerOf{json: result}, nil
}

// keys returns the objects that a field of the form names, and how those of them go that are in force.
func (d debugger) keys(field string) (named map[model.Key]bool, gone map[model.Key]*model.Config, err error) {
	named, gone = map[model.Key]bool{}, map[model.Key]*model.Config{}
	for _, text := range d.query[field] {
		parts := strings.SplitN(text, "/", 3)
		if len(parts) != 3 {
			return nil, nil, fmt.Errorf("%s=%q is no key: write KIND/NAMESPACE/NAME", field, text)
		}
		key := model.Key{Kind: model.Kind(parts[0]), Namespace: parts[1], Name: parts[2]}
		if named[key] = true; snapshot.InForce(key.Kind) && d.cfg.Objects.Get(key) != nil {
			gone[key] = nil
		}
	}
	return named, gone, nil
}

// after returns the mesh after a change of its objects.
func (d debugger) after(change map[model.Key]*model.Config) *snapshot.Mesh {
	if len(change) == 0 || d.cfg.Propose == nil {
		return d.mesh
	}
	return d.cfg.Propose(d.mesh, Proposal{Objects: change}).Mesh
}

// analyzed returns the input of an analysis: the objects in force, except those that are replaced.
func (d debugger) analyzed(mesh *snapshot.Mesh, replaced map[model.Key]bool) analyze.Input {
	in := analyze.Input{Mesh: mesh, Problems: d.storedProblems(replaced), Credential: d.cfg.Credential, Complete: true}
	for _, sch := range d.cfg.Objects.Schemas() {
		for _, c := range d.cfg.Objects.List(sch.Kind, "") {
			if !replaced[c.Key] {
				in.Objects = append(in.Objects, c)
			}
		}
	}
	for _, st := range d.source.Streams() {
		if !st.Objects {
			name := strings.TrimSuffix(st.Proxy.ID, "."+st.Proxy.Namespace)
			in.Workloads = append(in.Workloads, analyze.Workload{Namespace: st.Proxy.Namespace, Name: name, Labels: st.Proxy.Labels})
		}
	}
	return in
}

// storedProblems returns the problems of the objects that were not replaced: of reading them, and of
// generating configuration from them.
func (d debugger) storedProblems(replaced map[model.Key]bool) (out []model.Problem) {
	of := map[problemKey]bool{}
	for _, p := range d.mesh.Problems {
		of[problemKeyOf(p)] = true
	}
	for _, p := range d.problems() {
		if !of[problemKeyOf(p.Problem)] && !replaced[p.Object] {
			out = append(out, p.Problem)
		}
	}
	return out
}
