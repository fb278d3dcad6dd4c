// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// serialsFrom is the first minor version of Envoy 1 that denies serial numbers.
const serialsFrom = 37

// deniedList describes the deny list of a snapshot.
type deniedList struct {
	version          string // empty for an empty list
	entries, serials int
	// sequence is that of the first snapshot with this list, since is when it was
	// published. A sequence of 0 means that no snapshot had entries yet.
	sequence uint64
	since    time.Time
}

// deniedBefore returns the deny list of a snapshot, which may be nil.
func (p *published) deniedBefore() deniedList {
	if p == nil {
		return deniedList{}
	}
	return p.denied
}

// next returns the list of the next snapshot.
func (l deniedList) next(mesh *snapshot.Mesh, now time.Time) deniedList {
	if l.version == mesh.Denied.Version() {
		return l
	}
	return deniedList{
		version: mesh.Denied.Version(), entries: mesh.Denied.Len(), serials: len(mesh.Denied.Serials()),
		sequence: mesh.Sequence, since: now,
	}
}

// ignoresSerials reports whether a proxy, by its version, accepts certificates with
// denied serial numbers.
func ignoresSerials(p *model.Proxy) bool {
	if p.Proxyless {
		return true
	}
	major, rest, _ := strings.Cut(p.Envoy, ".")
	minor, _, _ := strings.Cut(rest, ".")
	first, err := strconv.Atoi(major)
	if err != nil {
		return true
	}
	second, err := strconv.Atoi(minor)
	return err != nil || first < 1 || first == 1 && second < serialsFrom
}

// ignoring returns the ids of the proxies that ignore denied serial numbers, if there
// are any.
func (s *Server) ignoring() []string {
	m := s.mesh.Load()
	if m == nil || m.denied.serials == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for st := range s.streams {
		if st.objects == nil && ignoresSerials(st.proxy) {
			out = append(out, st.proxy.ID)
		}
	}
	slices.Sort(out)
	return out
}

// warnOfSerials logs that proxies ignore the serial numbers of a list.
func (s *Server) warnOfSerials() {
	if out := s.ignoring(); len(out) > 0 {
		s.log.Warn("the deny list has serial numbers that some proxies ignore: they need Envoy 1."+strconv.Itoa(serialsFrom), "count", len(out), "proxy", out[0])
	}
}

// unacknowledged returns the proxies that have not acknowledged the deny list of the
// newest snapshot, and how many have.
func (s *Server) unacknowledged() (missing []string, acknowledged int) {
	m := s.mesh.Load()
	if m == nil || m.denied.sequence == 0 {
		return nil, 0
	}
	d := s.Distribution()
	for _, p := range d.Missing(m.denied.sequence) {
		missing = append(missing, p.ID)
	}
	return missing, len(d.proxies) - len(missing)
}

// denyList reports the deny list, with the problem of its newest text; nil if there is
// none.
func (s *Server) denyList(problem string) *report.DenyList {
	var l deniedList
	if m := s.mesh.Load(); m != nil {
		l = m.denied
	}
	if l.sequence == 0 && problem == "" {
		return nil
	}
	out := &report.DenyList{Version: l.version, Entries: l.entries, Serials: l.serials, Since: l.since, Problem: problem, Ignoring: s.ignoring()}
	out.Missing, out.Acknowledged = s.unacknowledged()
	slices.SortFunc(out.Missing, cmp.Compare[string])
	return out
}
