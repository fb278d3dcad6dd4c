// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package patch

import (
	"fmt"
	"regexp"
	"strconv"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/config/validate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// ApplyTo is the kind of configuration that a patch changes.
type ApplyTo = networkingv1alpha3.EnvoyFilter_ApplyTo

// Operation is what a patch does.
type Operation = networkingv1alpha3.EnvoyFilter_Patch_Operation

const (
	listener      = networkingv1alpha3.EnvoyFilter_LISTENER
	filterChain   = networkingv1alpha3.EnvoyFilter_FILTER_CHAIN
	listenerPart  = networkingv1alpha3.EnvoyFilter_LISTENER_FILTER
	networkFilter = networkingv1alpha3.EnvoyFilter_NETWORK_FILTER
	httpFilter    = networkingv1alpha3.EnvoyFilter_HTTP_FILTER
	routes        = networkingv1alpha3.EnvoyFilter_ROUTE_CONFIGURATION
	virtualHost   = networkingv1alpha3.EnvoyFilter_VIRTUAL_HOST
	httpRoute     = networkingv1alpha3.EnvoyFilter_HTTP_ROUTE
	cluster       = networkingv1alpha3.EnvoyFilter_CLUSTER
	extension     = networkingv1alpha3.EnvoyFilter_EXTENSION_CONFIG
	bootstrap     = networkingv1alpha3.EnvoyFilter_BOOTSTRAP

	merge        = networkingv1alpha3.EnvoyFilter_Patch_MERGE
	mergeLists   = networkingv1alpha3.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST
	add          = networkingv1alpha3.EnvoyFilter_Patch_ADD
	remove       = networkingv1alpha3.EnvoyFilter_Patch_REMOVE
	replace      = networkingv1alpha3.EnvoyFilter_Patch_REPLACE
	insertBefore = networkingv1alpha3.EnvoyFilter_Patch_INSERT_BEFORE
	insertAfter  = networkingv1alpha3.EnvoyFilter_Patch_INSERT_AFTER
	insertFirst  = networkingv1alpha3.EnvoyFilter_Patch_INSERT_FIRST
)

// Limits restrict what patches may contain. The zero value allows everything that Envoy accepts.
type Limits struct {
	// NoLua refuses Lua code.
	NoLua bool
	// NoFiles refuses files of the proxy's machine as sources of configuration.
	NoFiles bool
}

// LuaOff says that the operator forbids Lua.
const LuaOff = "Lua is switched off by the operator of the control plane"

const (
	// maxValue is the size of a patch in bytes.
	maxValue = 256 << 10
	// maxPatches bounds the patches of one object.
	maxPatches = 1000
)

// Filter is one EnvoyFilter.
type Filter struct {
	Config *model.Config
	Spec   *networkingv1alpha3.EnvoyFilter
	// Patches are the valid patches, in the order of the object.
	Patches []*Patch
	// version changes if and only if the spec changes.
	version string
}

// Patch is one valid patch of an EnvoyFilter. It is immutable.
type Patch struct {
	Filter *Filter
	// Index is the position in spec.configPatches.
	Index     int
	ApplyTo   ApplyTo
	Operation Operation
	match     *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectMatch
	class     networkingv1alpha3.EnvoyFilter_Patch_FilterClass
	value     proto.Message
	proxy     *regexp.Regexp // of the proxy's version; may be nil
	// before is what the patch was in an earlier version of the object, and is in force while the patch
	// is refused; nil if it was nothing. wrong is set once the patch is refused for a proxy.
	before *Patch
	wrong  *atomic.Bool
}

// At returns the path of the patch in its object.
func (p *Patch) At() string { return field.Index("spec.configPatches", p.Index) }

func (p *Patch) problem(reason string) model.Problem {
	return model.Problem{Object: p.Filter.Config.Key, Source: p.Filter.Config.Source, Reason: p.At() + reason}
}

// valid returns the newest version of the patch that no proxy refused; nil if there is none.
func (p *Patch) valid() *Patch {
	for p != nil && p.wrong.Load() {
		p = p.before
	}
	return p
}

// earlier are the patches of an earlier version of an object, by what they match and how they apply.
type earlier map[string][]*Patch

func newEarlier(f *Filter) earlier {
	out := earlier{}
	if f != nil {
		for _, p := range f.Patches {
			key := matchKey(f.Spec.GetConfigPatches()[p.Index])
			out[key] = append(out[key], p)
		}
	}
	return out
}

// take returns the earlier version of a patch, or nil, and removes it.
func (e earlier) take(c *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch) *Patch {
	if len(e) == 0 {
		return nil
	}
	key := matchKey(c)
	if len(e[key]) == 0 {
		return nil
	}
	p := e[key][0]
	e[key] = e[key][1:]
	return p.valid()
}

// matchKey returns a key for what a patch matches and how it applies.
func matchKey(c *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch) string {
	match, err := proto.MarshalOptions{Deterministic: true}.Marshal(c.GetMatch())
	if err != nil { // a text is not UTF-8
		match = fmt.Append(nil, c.GetMatch())
	}
	return fmt.Sprintf("%d %d %s", c.GetApplyTo(), c.GetPatch().GetOperation(), match)
}

// Parse returns an EnvoyFilter with its valid patches, and the problems of the others. Patches of
// prev, its version before, stay in force while those with the same match are invalid. A nil prev
// means that the object is new.
func Parse(obj *model.Config, spec *networkingv1alpha3.EnvoyFilter, limits Limits, prev *Filter) (*Filter, []model.Problem) {
	f, last := &Filter{Config: obj, Spec: spec}, newEarlier(prev)
	var problems []model.Problem
	digest := xxhash.New()
	if text, err := (proto.MarshalOptions{Deterministic: true}).Marshal(spec); err == nil {
		_, _ = digest.Write(text)
	}
	_, _ = fmt.Fprint(digest, obj.Created.UnixNano(), limits)
	for i, c := range spec.GetConfigPatches() {
		p := &Patch{
			Filter: f, Index: i, ApplyTo: c.GetApplyTo(), Operation: c.GetPatch().GetOperation(),
			match: c.GetMatch(), class: c.GetPatch().GetFilterClass(), wrong: &atomic.Bool{},
		}
		if i == maxPatches {
			problems = append(problems, p.problem(fmt.Sprintf(" and those after it are ignored: an object has at most %d patches; divide it", maxPatches)))
			break
		}
		before := last.take(c)
		if err := p.parse(c, limits); err != nil {
			if before == nil {
				problems = append(problems, p.problem(err.Error()+"; the patch is ignored"))
				continue
			}
			problems = append(problems, p.problem(err.Error()+"; its last valid version stays in force"))
			_, _ = digest.WriteString(prev.version) // it never fails
			p.Operation, p.value, p.class, p.proxy = before.Operation, before.value, before.class, before.proxy
			f.Patches = append(f.Patches, p)
			continue
		}
		if before != nil && before.same(p) {
			before = before.before
		}
		if p.before = before.as(p, maxBefore); before != nil {
			_, _ = digest.WriteString(prev.version) // so that the same object may have other results
		}
		for _, hint := range p.hints() {
			w := p.problem(hint)
			w.Warning = true
			problems = append(problems, w)
		}
		f.Patches = append(f.Patches, p)
	}
	f.version = strconv.FormatUint(digest.Sum64(), 36)
	return f, problems
}

// same reports whether two patches with the same match do the same.
func (p *Patch) same(o *Patch) bool {
	return p.Operation == o.Operation && p.class == o.class && proto.Equal(p.value, o.value)
}

// maxBefore is how many earlier versions a patch keeps: after a start, more than one may be invalid.
const maxBefore = 4

// as returns the patch as a part of the object of another one, with most-1 versions before it; nil if
// it is nil.
func (p *Patch) as(other *Patch, most int) *Patch {
	if p == nil || most == 0 {
		return nil
	}
	out := *p
	out.Filter, out.Index, out.before = other.Filter, other.Index, p.before.as(other, most-1)
	return &out
}

// parse reads the value of a patch. The error starts with the path below the patch.
func (p *Patch) parse(c *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch, limits Limits) error {
	if err := p.supported(); err != nil {
		return err
	}
	if text := p.match.GetProxy().GetProxyVersion(); text != "" {
		if err := model.CheckRegex(text); err != nil {
			return fmt.Errorf(".match.proxy.proxyVersion is %s: %w: correct the expression", field.Quote(text), err)
		}
		p.proxy = regexp.MustCompile(text)
	}
	switch {
	case p.Operation == remove:
		return nil
	case c.GetPatch().GetValue() == nil:
		return fmt.Errorf(".patch.value is missing: write the configuration of Envoy")
	}
	if n := proto.Size(c.GetPatch().GetValue()); n > maxValue {
		return fmt.Errorf(".patch.value has %d bytes: at most %d are allowed", n, maxValue)
	}
	value, err := validate.PatchMessage(p.ApplyTo, c.GetPatch().GetValue())
	if err != nil {
		return fmt.Errorf(".patch.value is not a %s: %s: correct it", p.ApplyTo, validate.JSONReason(err))
	}
	p.value = value
	if err := typed(value); err != nil {
		return fmt.Errorf(".patch.value%w", err)
	}
	if err := checkValue(value, limits); err != nil {
		return fmt.Errorf(".patch.value%w", err)
	}
	if p.Operation != merge && p.Operation != mergeLists {
		if err := checkMessage(value); err != nil {
			return fmt.Errorf(".patch.value would be refused by Envoy: %w: correct it", err)
		}
	}
	return nil
}

// operations are those that each kind of configuration supports. The insertions of other lists than
// those of filters and routes add at the end, as in Istio.
var operations = map[ApplyTo][]Operation{
	listener:      {merge, mergeLists, add, remove},
	filterChain:   {merge, mergeLists, add, remove},
	listenerPart:  {add, remove, replace, insertBefore, insertAfter, insertFirst},
	networkFilter: {merge, mergeLists, add, remove, replace, insertBefore, insertAfter, insertFirst},
	httpFilter:    {merge, mergeLists, add, remove, replace, insertBefore, insertAfter, insertFirst},
	routes:        {merge, mergeLists},
	virtualHost:   {merge, mergeLists, add, remove, replace},
	httpRoute:     {merge, mergeLists, add, remove, insertBefore, insertAfter, insertFirst},
	cluster:       {merge, mergeLists, add, remove},
	extension:     {add},
	bootstrap:     {merge},
}

// supported returns an error if the patch can have no effect. It replaces an operation by the one
// that it amounts to.
func (p *Patch) supported() error {
	known, ok := operations[p.ApplyTo]
	switch {
	case !ok:
		return fmt.Errorf(".applyTo is %s, which is not supported: write HTTP_FILTER, CLUSTER or another kind", p.ApplyTo)
	case p.match.GetContext() == networkingv1alpha3.EnvoyFilter_WAYPOINT:
		return fmt.Errorf(".match.context is WAYPOINT, and this mesh has no waypoints: write SIDECAR_INBOUND, SIDECAR_OUTBOUND or GATEWAY")
	}
	if p.Operation == insertBefore || p.Operation == insertAfter || p.Operation == insertFirst {
		switch p.ApplyTo {
		case listener, filterChain, virtualHost, cluster:
			p.Operation = add
		}
	}
	for _, o := range known {
		if o != p.Operation {
			continue
		}
		needs := p.Operation == remove || p.Operation == replace
		switch {
		case needs && p.ApplyTo == listenerPart && p.match.GetListener().GetListenerFilter() == "":
			return fmt.Errorf(".match.listener.listenerFilter is missing: %s needs the name of the filter", p.Operation)
		case needs && p.ApplyTo == networkFilter && p.match.GetListener().GetFilterChain().GetFilter() == nil:
			return fmt.Errorf(".match.listener.filterChain.filter is missing: %s needs the name of the filter", p.Operation)
		case needs && p.ApplyTo == httpFilter && p.match.GetListener().GetFilterChain().GetFilter().GetSubFilter() == nil:
			return fmt.Errorf(".match.listener.filterChain.filter.subFilter is missing: %s needs the name of the HTTP filter", p.Operation)
		}
		return nil
	}
	return fmt.Errorf(".patch.operation is %s, which has no effect on %s: write one of %v", p.Operation, p.ApplyTo, known)
}
