// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package patch

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Context is where a resource is used.
type Context = networkingv1alpha3.EnvoyFilter_PatchContext

// Place describes the proxy of a resource, as far as patches match it.
type Place struct {
	Context Context
	// Ports are the ports of services by the port at which a gateway listens.
	Ports map[uint32][]uint32
	// Hosts are the names of the services of a workload by the port at which it listens.
	Hosts map[uint32][]string
	// Search is shared by the resources of a set; nil means that a search has no limit.
	Search *Search
	// Denied is the protection that patches keep; nil if there is none.
	Denied Protection
}

// Protection refuses denied peers. No patch weakens it.
type Protection interface {
	// Owns reports whether a network filter is a part of it.
	Owns(*listenerv3.Filter) bool
	// Guard adds it to a listener, or what is missing of it.
	Guard(*listenerv3.Listener)
	// GuardNames removes denied servers from those that a cluster accepts by name.
	GuardNames(*clusterv3.Cluster)
}

// Search bounds the search for patches whose results are invalid.
type Search struct {
	attempts int
	wrong    map[*Filter]bool // has patches that were refused
}

// NewSearch returns a Search with a number of attempts.
func NewSearch(attempts int) *Search { return &Search{attempts, map[*Filter]bool{}} }

// Outcome is the result of patching one message.
type Outcome[M proto.Message] struct {
	// Message is the patched message. It is the original if nothing changed, and invalid if Removed.
	Message M
	Removed bool
	// Hits are the patches that had an effect.
	Hits     []*Patch
	Problems []model.Problem
}

// run applies patches to one message.
type run struct {
	Place
	patches Patches
	use     map[*Patch]*Patch // the version of each patch, those to leave out have none; nil means all
	hits    map[*Patch]bool
	failed  map[*Patch]error
	kept    map[*Patch]string // the filter of Place.Denied that a patch names
}

// of returns the patches of a kind that match the context.
func (r *run) of(kind ApplyTo) []*Patch {
	all := r.patches.kind[kind]
	out := make([]*Patch, 0, len(all))
	for _, p := range all {
		if r.use != nil {
			p = r.use[p]
		}
		if p == nil {
			continue
		}
		if p.in(r.Context) {
			out = append(out, p)
		}
	}
	return out
}

func (r *run) hit(p *Patch) { r.hits[p] = true }

// fail records that a patch cannot be applied.
func (r *run) fail(p *Patch, err error) { r.failed[p] = err }

// maxRefused bounds the patches of one message that are searched for because their results are
// invalid. If there are more, their EnvoyFilters are not applied.
const maxRefused = 16

// apply calls change with a copy of a message, and checks the result. A patch whose result Envoy
// would refuse is replaced by its last valid version, or left out.
func apply[M proto.Message](base M, place Place, patches Patches, kinds []ApplyTo, change func(*run, M) (keep bool), check func(M) error) Outcome[M] {
	attempt := func(use map[*Patch]*Patch) (out Outcome[M], r *run, err error) {
		r = &run{Place: place, patches: patches, use: use, hits: map[*Patch]bool{}, failed: map[*Patch]error{}, kept: map[*Patch]string{}}
		defer func() {
			if cause := recover(); cause != nil {
				err = fmt.Errorf("applying it fails with %q: report this", fmt.Sprint(cause))
			}
		}()
		m := proto.CloneOf(base)
		keep := change(r, m)
		out = Outcome[M]{Message: base, Removed: !keep, Hits: sorted(r.hits)}
		if len(out.Hits) > 0 && keep {
			out.Message, err = m, check(m)
		}
		return out, r, err
	}
	out, r, err := attempt(nil)
	if err == nil {
		out.Problems = r.problems()
		return out
	}
	search := place.Search
	if search == nil {
		search = NewSearch(math.MaxInt)
	}
	candidates := patches.all(place.Context, kinds)
	refused, version := map[*Patch]error{}, map[*Patch]*Patch{}
	for _, p := range candidates {
		version[p] = p
	}
	using := func(list []*Patch) map[*Patch]*Patch {
		out := make(map[*Patch]*Patch, len(list))
		for _, p := range list {
			out[p] = version[p]
		}
		return out
	}
	for range maxRefused {
		if search.attempts <= 0 {
			break
		}
		search.attempts -= 2 + bits.Len(uint(len(candidates)))
		left := slices.DeleteFunc(slices.Clone(candidates), func(p *Patch) bool { return version[p] == nil })
		good, bad := 0, len(left) // the first good patches are valid, the first bad ones are not
		reason := err
		for bad-good > 1 {
			middle := (good + bad) / 2
			if _, _, failed := attempt(using(left[:middle])); failed != nil {
				bad, reason = middle, failed
			} else {
				good = middle
			}
		}
		if bad == 0 {
			break // the message itself is invalid
		}
		wrong := left[bad-1]
		search.wrong[wrong.Filter] = true
		if version[wrong] == wrong {
			wrong.wrong.Store(true)
			refused[wrong], version[wrong] = reason, wrong.before
		} else {
			version[wrong] = version[wrong].before // nor is its last version valid here
		}
		if out, r, err = attempt(using(left)); err == nil {
			out.Problems = r.problems()
			for _, p := range sorted(refused) {
				if version[p] != nil {
					out.Problems = append(out.Problems, p.problem(": its last valid version stays in force: "+refused[p].Error()))
				} else {
					out.Problems = append(out.Problems, p.Refused(refused[p]))
				}
			}
			return out
		}
	}
	// The other EnvoyFilters stay in force if they are valid together.
	left := slices.DeleteFunc(slices.Clone(candidates), func(p *Patch) bool { return search.wrong[p.Filter] })
	out, _, err = attempt(using(left))
	alone := err != nil
	if alone {
		out = Outcome[M]{Message: base}
	}
	named := map[*Filter]bool{} // one problem for each object
	for _, p := range candidates {
		if (alone || search.wrong[p.Filter]) && refused[p] == nil && !named[p.Filter] {
			refused[p], named[p.Filter] = errTooMany, true
		}
	}
	out.Problems = problemsOf(refused)
	return out
}

var errTooMany = errors.New("nor are the others of this object: too many patches are invalid; correct those first")

// in reports whether a patch is for a context. Bootstraps have none, as in Istio.
func (p *Patch) in(c Context) bool {
	of := p.match.GetContext()
	return of == networkingv1alpha3.EnvoyFilter_ANY || of == c || p.ApplyTo == bootstrap
}

// all returns the patches of some kinds for a context.
func (p Patches) all(c Context, kinds []ApplyTo) (out []*Patch) {
	for _, kind := range kinds {
		for _, one := range p.kind[kind] {
			if one.in(c) {
				out = append(out, one)
			}
		}
	}
	return out
}

func sorted[V any](set map[*Patch]V) []*Patch {
	return slices.SortedFunc(maps.Keys(set), func(a, b *Patch) int {
		if c := a.Filter.Config.Key.Compare(b.Filter.Config.Key); c != 0 {
			return c
		}
		return a.Index - b.Index
	})
}

// problems returns the problems of the patches that were not applied, or not everywhere.
func (r *run) problems() []model.Problem {
	out := problemsOf(r.failed)
	for _, p := range sorted(r.kept) {
		w := p.problem(fmt.Sprintf(": the filter %s that refuses the peers on the deny list stays as it is: remove an entry from the list to admit a peer", r.kept[p]))
		w.Warning = true
		out = append(out, w)
	}
	return out
}

func problemsOf(refused map[*Patch]error) (out []model.Problem) {
	for _, p := range sorted(refused) {
		out = append(out, p.Refused(refused[p]))
	}
	return out
}

// Refused returns the problem of a patch whose result Envoy would refuse.
func (p *Patch) Refused(err error) model.Problem {
	return p.problem(": it is not applied: " + err.Error())
}
