// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/internal/output"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// origin decides whether versions that a control plane knows belong into a store.
type origin struct {
	control string   // address of the control plane
	stores  []string // URLs of its stores
	store   string   // URL of the store to write
	key     model.Key
}

// errGenerated means that a version was not written by a user.
var errGenerated = errors.New("outrigger up made this version from its mesh file: to have it again, delete the object")

// check reports whether the object comes from the store, or returns an error unless that is a store of the
// control plane. Last is the newest version of the object that has content, and exists is true if the
// control plane has the object now.
func (o origin) check(last report.Version, exists bool, there standing) (own bool, err error) {
	if len(o.stores) == 0 {
		return false, fmt.Errorf("control plane %s does not say which stores it reads, so a version of another mesh could be written: update it, or apply what outrigger history --revision REVISION prints", o.control)
	}
	to, both := placeOf(o.store), exists && there.object != nil
	from := o.storeOf(last.Source)
	same := both && !last.Created.IsZero() && there.object.Created.Equal(last.Created)
	switch {
	case to.scheme == "k8s" && exists && !both:
		return false, fmt.Errorf("control plane %s has %s, and %s does not: if it was not deleted just now, they are of different clusters: name the other one with --control, or its kubeconfig with --store k8s:///path", o.control, display(o.key), shown(o.store))
	case to.scheme == "k8s" && both && !same:
		return false, fmt.Errorf("%s of control plane %s was created at %s, that of %s at %s: they are of different clusters: name the other one with --control, or its kubeconfig with --store k8s:///path", display(o.key), o.control, clock(last.Created), shown(o.store), clock(there.object.Created))
	case slices.ContainsFunc(o.stores, func(s string) bool { return sameStore(s, o.store) }):
		return from == "" || sameStore(from, o.store), nil
	case same && placeOf(from).scheme == to.scheme:
		return true, nil // the store has another address here
	}
	stores := o.stores
	if written, err := mesh.RunningStore(os.TempDir(), o.control); err == nil && written != "" {
		stores = []string{written} // not the one that outrigger up generates
	}
	return false, fmt.Errorf("%s is no store of control plane %s, whose history this is: name its store with --store %s, or the control plane of that store with --control", shown(o.store), o.control, strings.Join(stores, " or --store "))
}

// elsewhere returns the error for an object that comes from another store.
func (o origin) elsewhere(last report.Version) error {
	from := o.storeOf(last.Source)
	file, _, err := mesh.RunningFile(os.TempDir(), o.control)
	if err != nil {
		return err
	}
	objects, err := mesh.RunningStore(os.TempDir(), o.control)
	cure := "name it with --store " + from
	switch {
	case err != nil:
		return err
	case file != "" && from != objects:
		return fmt.Errorf("outrigger up makes %s from %s: change it there; a copy in %s would be a second one", display(o.key), file, shown(o.store))
	case placeOf(from).scheme == "k8s":
		cure = "change it with kubectl, or " + cure
	case placeOf(from).scheme == "xds":
		cure = "change it where that server has it from"
	}
	return fmt.Errorf("%s comes from %s, not from %s, where it would be a second one: %s", display(o.key), last.Source, shown(o.store), cure)
}

// restorable returns the object of a version, or errGenerated.
func (o origin) restorable(v report.Version) (*model.Config, error) {
	c, err := pastObject(v)
	if err == nil && c.Annotations[config.Replaceable] == "true" {
		err = &ExitError{exitFailed, fmt.Errorf("revision %s of %s: %w", v.Revision, display(o.key), errGenerated)}
	}
	return c, err
}

// storeOf returns the URL of the store that an object comes from; "" if it is none of them.
func (o origin) storeOf(source string) (found string) {
	for _, s := range o.stores {
		in, at := placeOf(s), placeOf(source)
		if in.scheme == "fs" {
			at = place{scheme: "fs", path: path.Clean(source)}
		}
		if strings.HasPrefix(source, s+" ") || in.scheme == at.scheme && in.meets(at) && strings.HasPrefix(at.path, strings.TrimSuffix(in.path, "/")+"/") {
			if len(s) > len(found) {
				found = s
			}
		}
	}
	return found
}

// place is where a URL leads, without its user and its parameters.
type place struct {
	scheme, path string
	hosts        []string
}

// placeOf returns where a URL leads.
func placeOf(address string) place {
	u, err := url.Parse(address)
	if err != nil {
		return place{path: address}
	}
	p := place{scheme: u.Scheme, path: path.Clean("/" + u.Path)}
	for host := range strings.SplitSeq(u.Host, ",") {
		if p.scheme == "etcd" && host != "" && !strings.Contains(strings.TrimLeft(host, "["), ":") {
			host += ":2379"
		}
		p.hosts = append(p.hosts, host)
	}
	return p
}

// meets reports whether two places have a host in common.
func (p place) meets(q place) bool {
	return p.scheme == "fs" || slices.ContainsFunc(p.hosts, func(h string) bool { return slices.Contains(q.hosts, h) })
}

// sameStore reports whether two URLs name the same store. Those of clusters do not say which one they
// name.
func sameStore(a, b string) bool {
	p, q := placeOf(a), placeOf(b)
	for _, one := range []*place{&p, &q} {
		if real, err := filepath.EvalSymlinks(one.path); err == nil && one.scheme == "fs" {
			one.path = real
		}
	}
	return p.scheme == q.scheme && (p.scheme == "k8s" || p.meets(q) && p.path == q.path)
}

// shown returns a URL without its password.
func shown(address string) string {
	if u, err := url.Parse(address); err == nil {
		return u.Redacted()
	}
	return "the store"
}

// clock formats a time of the past as it is now here.
func clock(at time.Time) string { return output.Clock(at, time.Now()) }

// fileOf returns a source without the line.
func fileOf(source string) string {
	i := strings.LastIndexByte(source, ':')
	if _, err := strconv.Atoi(source[i+1:]); i < 0 || err != nil {
		return source
	}
	return source[:i]
}
