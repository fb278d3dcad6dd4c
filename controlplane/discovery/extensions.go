// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Configurations of plugins (ECDS) are asked for by the listeners that name them,
// so a plugin goes with the listener: nobody is told that its configuration is
// gone, for what drains still runs it. They are not held back from others when a
// proxy rejects one: whether a module can be had is different for each machine.
//
// Envoy keeps a module when it rejects the next one, but it rejects from then on
// every listener that names the plugin, too. So it is sent the good one again.
// What an agent rejects never came to Envoy; the agent goes on trying.
//
// The secret that an image is pulled with is no part of a snapshot. It is filled
// in for the stream, on the terms of other secrets: over TLS, for a proxy that has
// shown who it is, out of its namespace or the root namespace, where the plugin
// has to be, too.

// extensionView is what one stream gets of plugins. The stream's loop owns it,
// but for what is atomic.
type extensionView struct {
	// made is what set was completed from; nil when it has to be looked at again.
	made, set *xds.Set
	// seen is the value of changes that set knows of.
	seen     uint64
	problems []model.Problem
	refused  map[string]refusal
	again    <-chan time.Time // when to look again; nil for not by itself
	// pending is what the proxy has not answered; good is the last of each name
	// that it took, and bad what it rejected of what is still made.
	pending []*xds.Resource
	good    map[string]*xds.Resource
	bad     map[string]map[uint64]struct{}
	secretWatch
}

// reset forgets everything: the proxy asks for no plugins any more.
func (v *extensionView) reset() {
	v.watched.Store(nil)
	v.made, v.set, v.problems, v.refused, v.again = nil, nil, nil, nil, nil
	v.pending, v.good, v.bad = nil, nil, nil
}

// extensionSet completes what was generated with the secrets that it needs.
func (s *stream) extensionSet(made *xds.Set) *xds.Set {
	v := &s.extensions
	if seen := v.changes.Load(); v.made == made && seen == v.seen {
		s.tellPlugins(nil)
		return v.set
	}
	// From here on it hears of changes, so that none falls between this and
	// looking at the Secrets.
	refs := map[string]credentials.Reference{}
	var watched []credentials.Reference
	for _, res := range made.Resources {
		name, err := generate.PullSecret(res)
		if err != nil || name == "" {
			continue // what cannot be read was not made here
		}
		ref, err := credentials.ParseReference(name, s.proxy.Namespace)
		if err != nil {
			continue // Config wrote it
		}
		refs[res.Name] = ref
		watched = append(watched, ref)
	}
	v.watched.Store(&watched)
	v.seen, v.made, v.again = v.changes.Load(), made, nil
	before := v.problems
	v.problems = nil
	set := made
	if len(refs) > 0 {
		set = s.complete(made, refs)
	} else {
		v.refused = nil
	}
	v.set = v.instead(set)
	s.tellPlugins(before)
	return v.set
}

// lookAgainForPlugins looks whether the Secrets were read by now.
func (s *stream) lookAgainForPlugins() error {
	s.extensions.again, s.extensions.made = nil, nil
	s.take()
	return s.push()
}

// instead gives a set with what the proxy took before in the place of what it
// rejected.
func (v *extensionView) instead(set *xds.Set) *xds.Set {
	if len(v.bad) == 0 {
		return set
	}
	out := make([]*xds.Resource, 0, len(set.Resources))
	still := map[string]map[uint64]struct{}{}
	for _, res := range set.Resources {
		bad := v.bad[res.Name]
		if _, rejected := bad[res.Hash]; rejected {
			still[res.Name] = bad
			if good := v.good[res.Name]; good != nil {
				res = good
			}
		}
		out = append(out, res)
	}
	v.bad = still
	return xds.NewSet(v.set, out, nil)
}

// sentPlugins notes what the proxy is to answer.
func (s *stream) sentPlugins(sub *subscription, resources []*xds.Resource) {
	if sub.typeURL == xds.TypeExtension {
		s.extensions.pending = resources
	}
}

// answeredPlugins takes the proxy's answer. What Envoy rejected is what its words
// name, or all if they name none; code 0 is the agent's.
func (s *stream) answeredPlugins(q *request) {
	v := &s.extensions
	if q.typeURL != xds.TypeExtension || strings.HasPrefix(q.rejected, "code 0:") {
		return
	}
	named := func(res *xds.Resource) bool { return strings.Contains(q.message, res.Name) }
	some := slices.ContainsFunc(v.pending, named)
	for _, res := range v.pending {
		switch {
		case q.rejected == "" || some && !named(res):
			if v.good == nil {
				v.good = map[string]*xds.Resource{}
			}
			v.good[res.Name] = res
		case v.good[res.Name] == res:
			delete(v.good, res.Name)
			fallthrough
		default:
			if v.bad == nil {
				v.bad = map[string]map[uint64]struct{}{}
			}
			if v.bad[res.Name] == nil {
				v.bad[res.Name] = map[uint64]struct{}{}
			}
			v.bad[res.Name][res.Hash] = struct{}{}
			v.made = nil // look again
		}
	}
	v.pending = nil
}

// complete fills in secrets. A plugin that does not get its own is given with the
// word that there is none, so that the agent does what its author wants when it
// fails; while Secrets are still being read it is not given.
func (s *stream) complete(made *xds.Set, refs map[string]credentials.Reference) *xds.Set {
	v := &s.extensions
	refused := map[string]refusal{}
	out := make([]*xds.Resource, 0, len(made.Resources))
	for _, res := range made.Resources {
		ref, ok := refs[res.Name]
		if !ok {
			out = append(out, res)
			continue
		}
		docker, no := s.pullSecret(ref)
		if no.label == refusedLoading {
			v.again = time.After(s.server.secretRetry)
			continue
		}
		if no.label != "" {
			refused[res.Name] = no
		}
		full, err := s.server.secrets.completed(res, ref, docker)
		if err != nil {
			continue // it was read before
		}
		out = append(out, full)
	}
	s.refusePlugins(refused)
	return xds.NewSet(v.set, out, nil)
}

// pullSecret gives the docker config that a reference means, or why the proxy does
// not get it.
func (s *stream) pullSecret(ref credentials.Reference) (*credentials.Docker, refusal) {
	root := s.mesh.WasmPlugins.Root()
	err := ref.CheckNamespace(s.proxy.Namespace, func(r credentials.Reference) bool { return r.Namespace == root })
	switch {
	case !s.secure:
		return nil, refusal{refusedPlaintext, "pull secrets are given only over TLS, to a proxy that has shown who it is; use the TLS port"}
	case s.server.secrets.cfg.Source == nil:
		return nil, refusal{refusedMissing, "this control plane reads no Secrets"}
	case err != nil:
		return nil, refusal{refusedNamespace, err.Error()}
	}
	docker, err := s.server.secrets.docker(ref)
	switch {
	case err == nil:
		return docker, refusal{}
	case errors.Is(err, errLoading):
		return nil, refusal{refusedLoading, err.Error()}
	case errors.Is(err, credentials.ErrNotFound):
		return nil, refusal{refusedMissing, fmt.Sprintf("there is no Secret %s/%s with .dockerconfigjson", ref.Namespace, ref.Name)}
	}
	return nil, refusal{refusedBroken, err.Error()}
}

// refusePlugins counts and logs what was not refused before for the same reason.
// What is the same for all proxies is a problem of the object.
func (s *stream) refusePlugins(refused map[string]refusal) {
	v := &s.extensions
	for _, name := range slices.Sorted(maps.Keys(refused)) {
		no := refused[name]
		if no != v.refused[name] {
			s.server.metrics.refusedSecrets.WithLabelValues(no.label).Inc()
		}
		plugin := s.mesh.WasmPlugins.Get(name)
		if no.label == refusedPlaintext || plugin == nil {
			if no != v.refused[name] {
				s.log.Warn("a proxy does not get the pull secret of a plugin", "resource", clip(name), "reason", no.text)
			}
			continue
		}
		v.problems = append(v.problems, model.Problem{
			Object: plugin.Config.Key, Source: plugin.Config.Source,
			Reason: fmt.Sprintf("spec.imagePullSecret: %s: the image cannot be pulled; create the Secret or correct the name", no.text),
		})
	}
	v.refused = refused
}

// tellPlugins logs problems that are new, keeps those that stay, and drops those
// of before that are over.
func (s *stream) tellPlugins(before []model.Problem) {
	now := s.extensions.problems
	for _, p := range s.server.spoilt.fresh(now, s.mesh.Sequence) {
		s.server.warn(p)
	}
	s.server.spoilt.over(slices.DeleteFunc(slices.Clone(before), func(p model.Problem) bool { return slices.Contains(now, p) }))
}
