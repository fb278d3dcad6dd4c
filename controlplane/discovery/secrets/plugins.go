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
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/internal/clip"
)

// Plugins contains the plugin configurations (ECDS) that one stream receives. The goroutine of the
// stream owns it; only Changed is safe for concurrent use.
//
// Listeners refer to plugins, so that a plugin is removed with its listener. Proxies are not
// notified of removed configurations, because draining listeners still use them. A rejection is
// not applied to other proxies: whether a module can be downloaded depends on the machine.
//
// Envoy keeps a module when it rejects the next version, but from then on it also rejects every
// listener that refers to the plugin. It is therefore sent the accepted version again, or without
// one a filter that does what the plugin's failStrategy says. What an agent rejects never reached
// Envoy; the agent retries.
//
// The pull secret of an image is not part of a snapshot. It is added for each stream under the
// same conditions as other secrets: over TLS, for a proven caller, and from its namespace or the
// root namespace, in which the plugin must also be.
type Plugins struct {
	server   *Server
	client   Client
	reporter Reporter

	mesh *snapshot.Mesh
	// made is the set that set was completed from; nil if it must be completed again.
	made, set *xds.Set
	// seen is the value of changes that set includes.
	seen     uint64
	problems []model.Problem
	refused  map[string]refusal
	again    <-chan time.Time // when to check again; nil for never
	// pending are unanswered responses, oldest first. good maps each name to the version that was
	// accepted last, and bad contains the rejected versions that are still made.
	pending []response
	good    map[string]*xds.Resource
	bad     map[string]map[uint64]struct{}
	// rejections contains the last rejections by Envoy or its agent of plugins that are still
	// made.
	rejections map[string]rejection
	watch
}

// response is what was sent under a nonce.
type response struct {
	nonce     string
	resources []*xds.Resource
}

// rejection is one version of a plugin that was rejected.
type rejection struct {
	hash   uint64
	reason string
}

// Reporter receives the problems of plugins.
type Reporter interface {
	// Report replaces earlier problems by the current ones, of the snapshot with the given
	// sequence.
	Report(before, now []model.Problem, sequence uint64)
}

// NewPlugins returns the plugins of a stream without requests.
func (s *Server) NewPlugins(c Client, r Reporter) *Plugins {
	return &Plugins{server: s, client: c, reporter: r}
}

// Reset ends the subscription: the proxy no longer requests plugins.
func (v *Plugins) Reset() {
	v.watched.Store(nil)
	v.made, v.set, v.problems, v.refused, v.again = nil, nil, nil, nil, nil
	v.pending, v.good, v.bad, v.rejections = nil, nil, nil, nil
}

// Set completes the configurations of a snapshot with their secrets.
func (v *Plugins) Set(made *xds.Set, mesh *snapshot.Mesh) *xds.Set {
	v.mesh = mesh
	if seen := v.changes.Load(); v.made == made && seen == v.seen {
		v.report(nil)
		return v.set
	}
	// Changes are counted from here on, so that none is missed while the Secrets are read.
	refs := map[string]credentials.Reference{}
	var watched []credentials.Reference
	for _, res := range made.Resources {
		name, err := extension.PullSecret(res)
		if err != nil || name == "" {
			continue // not generated here, or without a secret
		}
		ref, err := credentials.ParseReference(name, v.client.Namespace)
		if err != nil {
			continue // the generator produces valid references
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
	maps.DeleteFunc(v.good, func(name string, _ *xds.Resource) bool { return made.Get(name) == nil }) // another plugin may reuse the name
	v.set = v.withAccepted(set)
	v.report(before)
	return v.set
}

// Again returns a channel that receives when CheckAgain must be called, or nil for never.
func (v *Plugins) Again() <-chan time.Time { return v.again }

// CheckAgain makes Set check refused secrets again.
func (v *Plugins) CheckAgain() { v.again, v.made = nil, nil }

// withAccepted returns a set in which rejected resources are replaced by their accepted versions,
// or by [extension.Replacement].
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
			res = v.instead(res)
		}
		out = append(out, res)
	}
	v.bad = still
	return xds.NewSet(v.set, out, nil)
}

// instead returns what the proxy receives instead of a resource that it rejected.
func (v *Plugins) instead(res *xds.Resource) *xds.Resource {
	if good := v.good[res.Name]; good != nil {
		return good
	}
	plugin := v.mesh.WasmPlugins.Get(res.Name)
	if plugin == nil {
		return res // not a plugin of this snapshot
	}
	if r, err := extension.Replacement(plugin); err == nil {
		return r
	}
	return res
}

// Sent records the resources of a response that the proxy must answer.
func (v *Plugins) Sent(nonce string, resources []*xds.Resource) {
	const most = 1000 // of a client that never answers
	if len(v.pending) == most {
		v.pending = v.pending[1:]
	}
	v.pending = append(v.pending, response{nonce, resources})
}

// scriptError begins Envoy's message about a script that it cannot load.
const scriptError = "script load error: "

// Answered processes the proxy's answer to a response: the rejection with its code, or "" for an
// acceptance, and the message in it. It returns the names of resources to send again: Envoy stops at
// the first one that it rejects, in an order of its own, and may lack the others. Code 0 is that of
// the agent. What was sent instead of a rejected plugin changes nothing.
func (v *Plugins) Answered(nonce, rejected, message string) (again []string) {
	i := slices.IndexFunc(v.pending, func(r response) bool { return r.nonce == nonce })
	if i < 0 {
		return nil
	}
	answered := slices.DeleteFunc(slices.Clone(v.pending[i].resources), extension.IsReplacement)
	var bad []*xds.Resource
	if rejected != "" {
		bad = v.named(message, answered)
	}
	for _, res := range answered {
		if slices.Contains(bad, res) {
			if v.rejections == nil {
				v.rejections = map[string]rejection{}
			}
			v.rejections[res.Name] = rejection{res.Hash, rejected}
		} else if v.rejections[res.Name].hash == res.Hash {
			delete(v.rejections, res.Name)
		}
	}
	if strings.HasPrefix(rejected, report.AgentCode) {
		return nil // the agent retries and answers again
	}
	v.pending = slices.Delete(v.pending, 0, i+1)
	for _, res := range answered {
		switch {
		case rejected == "":
			if v.good == nil {
				v.good = map[string]*xds.Resource{}
			}
			v.good[res.Name] = res
		case !slices.Contains(bad, res):
			again = append(again, res.Name)
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
			v.made = nil // complete the set again
		}
	}
	return again
}

// named returns the resources that the message of a rejection names, or all if it names none. A
// script can choose a message that does not name it: then it may be any script that was not accepted
// before.
func (v *Plugins) named(message string, sent []*xds.Resource) (out []*xds.Resource) {
	if _, text, ok := strings.Cut(message, scriptError); ok {
		for _, res := range sent {
			if strings.HasPrefix(text, `[string "`+extension.Mark(res.Name)) {
				return []*xds.Resource{res}
			}
		}
		out = slices.DeleteFunc(slices.Clone(sent), func(res *xds.Resource) bool { return v.good[res.Name] == res || !extension.IsScript(res) })
	} else {
		// A name may be a part of a longer one.
		for _, res := range slices.SortedFunc(slices.Values(sent), func(a, b *xds.Resource) int { return len(b.Name) - len(a.Name) }) {
			if strings.Contains(message, res.Name) {
				out, message = append(out, res), strings.ReplaceAll(message, res.Name, " ")
			}
		}
	}
	if len(out) == 0 {
		return sent
	}
	return out
}

// Rejected returns the names of the plugins that the proxy lacks because Envoy or its agent
// rejected them, and the reason. They remain rejected after the proxy has accepted the previous
// version again.
func (v *Plugins) Rejected() (names []string, reason string) {
	names = slices.Sorted(maps.Keys(v.rejections))
	if len(names) > 0 {
		reason = v.rejections[names[0]].reason
	}
	return names, reason
}

// complete adds the secrets. A plugin whose secret is refused is sent with a marker for a missing
// secret, so that the agent applies the fail strategy of the plugin. While Secrets are still being
// read, the plugin is not sent.
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
			continue // parsed before
		}
		out = append(out, full)
	}
	v.refuse(refused)
	return xds.NewSet(v.set, out, nil)
}

// pullSecret returns the docker config of a reference, or why the proxy does not receive it.
func (v *Plugins) pullSecret(ref credentials.Reference) (*credentials.Docker, refusal) {
	root := v.mesh.WasmPlugins.Root()
	err := ref.CheckNamespace(v.client.Namespace, func(r credentials.Reference) bool { return r.Namespace == root })
	switch {
	case !v.client.Secure:
		return nil, refusal{refusedPlaintext, "pull secrets are sent only over TLS, to an authenticated proxy; use the TLS port"}
	case v.server.cfg.Source == nil:
		return nil, refusal{refusedMissing, "this control plane reads no Secrets"}
	case err != nil:
		return nil, refusal{refusedNamespace, err.Error()}
	}
	docker, err := v.server.docker(ref)
	switch {
	case err == nil:
		return docker, refusal{}
	case errors.Is(err, credentials.ErrLoading):
		return nil, refusal{refusedLoading, err.Error()}
	case errors.Is(err, credentials.ErrNotFound):
		return nil, refusal{refusedMissing, fmt.Sprintf("there is no Secret %s/%s with .dockerconfigjson", ref.Namespace, ref.Name)}
	}
	return nil, refusal{refusedBroken, err.Error()}
}

// refuse counts and logs refusals that are new or whose reason has changed. A refusal that affects
// all proxies alike is reported as a problem of the object.
func (v *Plugins) refuse(refused map[string]refusal) {
	for _, name := range slices.Sorted(maps.Keys(refused)) {
		no := refused[name]
		if no != v.refused[name] {
			v.server.refused.WithLabelValues(no.label).Inc()
		}
		plugin := v.mesh.WasmPlugins.Get(name)
		if no.label == refusedPlaintext || plugin == nil {
			if no != v.refused[name] {
				v.client.Log.Warn("the pull secret of a plugin is not sent to a proxy", "resource", clip.Text(name, maxLogged), "reason", no.text)
			}
			continue
		}
		v.problems = append(v.problems, model.Problem{
			Object: plugin.Config.Key, Source: plugin.Config.Source,
			Reason: fmt.Sprintf("%s.imagePullSecret: %s: the image cannot be pulled; create the Secret or correct the name", plugin.At, no.text),
		})
	}
	v.refused = refused
}

func (v *Plugins) report(before []model.Problem) {
	v.reporter.Report(before, v.problems, v.mesh.Sequence)
}
