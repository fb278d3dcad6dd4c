// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package secrets

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/extension"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/internal/clip"
)

// Plugins are the configurations of plugins (ECDS) that one stream receives. The
// goroutine of the stream owns them; only Changed is safe for concurrent use.
//
// Listeners name the plugins, so a plugin goes with its listener: a proxy is not
// told that a configuration is gone, because listeners that drain still use it. A
// rejection is not applied to other proxies: whether a module can be downloaded
// differs from machine to machine.
//
// Envoy keeps a module when it rejects the next version, but from then on it also
// rejects every listener that names the plugin. So it is sent the accepted version
// again. What an agent rejects never reached Envoy; the agent retries.
//
// The pull secret of an image is no part of a snapshot. It is filled in for the
// stream on the terms of other secrets: over TLS, for a proven caller, out of its
// namespace or the root namespace, where the plugin must be as well.
type Plugins struct {
	server   *Server
	client   Client
	reporter Reporter

	mesh *snapshot.Mesh
	// made is what set was completed from; nil if it must be made again.
	made, set *xds.Set
	// seen is the value of changes that set includes.
	seen     uint64
	problems []model.Problem
	refused  map[string]refusal
	again    <-chan time.Time // when to check again; nil for never
	// pending are unanswered; good is the version of each name that was accepted
	// last, and bad are the rejected ones that are still made.
	pending []*xds.Resource
	good    map[string]*xds.Resource
	bad     map[string]map[uint64]struct{}
	// rejections are what Envoy or its agent rejected last of what is still made.
	rejections map[string]rejection
	watch
}

// rejection is one version of a plugin that was rejected.
type rejection struct {
	hash   uint64
	reason string
}

// Reporter takes the problems of plugins.
type Reporter interface {
	// Report replaces the problems of before by those of now, of the snapshot with
	// a sequence.
	Report(before, now []model.Problem, sequence uint64)
}

// NewPlugins returns the plugins of a stream that has requested none yet.
func (s *Server) NewPlugins(c Client, r Reporter) *Plugins {
	return &Plugins{server: s, client: c, reporter: r}
}

// Reset ends the subscription: the proxy requests no plugins any more.
func (v *Plugins) Reset() {
	v.watched.Store(nil)
	v.made, v.set, v.problems, v.refused, v.again = nil, nil, nil, nil, nil
	v.pending, v.good, v.bad, v.rejections = nil, nil, nil, nil
}

// Set completes the configurations of a snapshot with the secrets they need.
func (v *Plugins) Set(made *xds.Set, mesh *snapshot.Mesh) *xds.Set {
	v.mesh = mesh
	if seen := v.changes.Load(); v.made == made && seen == v.seen {
		v.report(nil)
		return v.set
	}
	// Changes count from here on, so that none falls between this and the use of
	// the Secrets.
	refs := map[string]credentials.Reference{}
	var watched []credentials.Reference
	for _, res := range made.Resources {
		name, err := extension.PullSecret(res)
		if err != nil || name == "" {
			continue // an unreadable resource was not generated here
		}
		ref, err := credentials.ParseReference(name, v.client.Namespace)
		if err != nil {
			continue // the generator wrote it
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
		set = v.complete(made, refs)
	} else {
		v.refused = nil
	}
	maps.DeleteFunc(v.rejections, func(name string, r rejection) bool {
		res := set.Get(name)
		return res == nil || res.Hash != r.hash
	})
	maps.DeleteFunc(v.good, func(name string, _ *xds.Resource) bool { return made.Get(name) == nil }) // another plugin may take the name
	v.set = v.withAccepted(set)
	v.report(before)
	return v.set
}

// Again receives when refused secrets are to be checked again; nil for never. Then
// call CheckAgain.
func (v *Plugins) Again() <-chan time.Time { return v.again }

// CheckAgain makes Set check refused secrets again.
func (v *Plugins) CheckAgain() { v.again, v.made = nil, nil }

// withAccepted returns a set with the accepted versions of what the proxy rejected.
func (v *Plugins) withAccepted(set *xds.Set) *xds.Set {
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

// Sent records what the proxy has to answer.
func (v *Plugins) Sent(resources []*xds.Resource) { v.pending = resources }

// AgentCode begins the rejections of agents: Envoy did not see what they rejected.
const AgentCode = "code 0:"

// Answered takes the proxy's answer: the rejection with its code, empty for an
// acceptance, and the message in it. Envoy rejects what its message names, or
// everything if it names nothing; code 0 is the agent's.
func (v *Plugins) Answered(rejected, message string) {
	named := func(res *xds.Resource) bool { return strings.Contains(message, res.Name) }
	some := slices.ContainsFunc(v.pending, named)
	accepted := func(res *xds.Resource) bool { return rejected == "" || some && !named(res) }
	for _, res := range v.pending {
		if !accepted(res) {
			if v.rejections == nil {
				v.rejections = map[string]rejection{}
			}
			v.rejections[res.Name] = rejection{res.Hash, rejected}
		} else if v.rejections[res.Name].hash == res.Hash {
			delete(v.rejections, res.Name)
		}
	}
	if strings.HasPrefix(rejected, AgentCode) {
		return // the agent retries, and answers again
	}
	for _, res := range v.pending {
		switch {
		case accepted(res):
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
			v.made = nil // make it again
		}
	}
	v.pending = nil
}

// Rejected returns the names of the plugins that the proxy does not have because
// Envoy or its agent rejected them, and why. It is still so when the proxy has
// accepted the version before again.
func (v *Plugins) Rejected() (names []string, reason string) {
	names = slices.Sorted(maps.Keys(v.rejections))
	if len(names) > 0 {
		reason = v.rejections[names[0]].reason
	}
	return names, reason
}

// complete fills in secrets. A plugin whose secret is refused is sent with the mark
// that there is none, so that the agent applies the fail strategy of the plugin;
// while Secrets are still being read, the plugin is not sent.
func (v *Plugins) complete(made *xds.Set, refs map[string]credentials.Reference) *xds.Set {
	refused := map[string]refusal{}
	out := make([]*xds.Resource, 0, len(made.Resources))
	for _, res := range made.Resources {
		ref, ok := refs[res.Name]
		if !ok {
			out = append(out, res)
			continue
		}
		docker, no := v.pullSecret(ref)
		if no.label == refusedLoading {
			v.again = time.After(v.server.cfg.Retry)
			continue
		}
		if no.label != "" {
			refused[res.Name] = no
		}
		full, err := v.server.completed(res, ref, docker)
		if err != nil {
			continue // it was read before
		}
		out = append(out, full)
	}
	v.refuse(refused)
	return xds.NewSet(v.set, out, nil)
}

// pullSecret returns the docker config of a reference, or why the proxy does not get
// it.
func (v *Plugins) pullSecret(ref credentials.Reference) (*credentials.Docker, refusal) {
	root := v.mesh.WasmPlugins.Root()
	err := ref.CheckNamespace(v.client.Namespace, func(r credentials.Reference) bool { return r.Namespace == root })
	switch {
	case !v.client.Secure:
		return nil, refusal{refusedPlaintext, "pull secrets are given only over TLS, to a proxy that has shown who it is; use the TLS port"}
	case v.server.cfg.Source == nil:
		return nil, refusal{refusedMissing, "this control plane reads no Secrets"}
	case err != nil:
		return nil, refusal{refusedNamespace, err.Error()}
	}
	docker, err := v.server.docker(ref)
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

// refuse counts and logs refusals that are new or have another reason. A refusal
// that is the same for all proxies is a problem of the object.
func (v *Plugins) refuse(refused map[string]refusal) {
	for _, name := range slices.Sorted(maps.Keys(refused)) {
		no := refused[name]
		if no != v.refused[name] {
			v.server.refused.WithLabelValues(no.label).Inc()
		}
		plugin := v.mesh.WasmPlugins.Get(name)
		if no.label == refusedPlaintext || plugin == nil {
			if no != v.refused[name] {
				v.client.Log.Warn("a proxy does not get the pull secret of a plugin", "resource", clip.Text(name, maxLogged), "reason", no.text)
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

func (v *Plugins) report(before []model.Problem) {
	v.reporter.Report(before, v.problems, v.mesh.Sequence)
}
