// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/patch"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// hint says of a Gateway what no other part can know: that no proxy is one for it,
// and which credentials the proxies that have it are not given. Those are the
// streams.
func (d debugger) hint(out *report.Object, key model.Key, having []*Stream) {
	switch key.Kind {
	case model.Gateway:
		gw := d.mesh.Gateways.Get(key.Namespace + "/" + key.Name)
		if gw == nil {
			return
		}
		out.Lacking = d.lacking(gw.Spec, having)
		if len(having) == 0 && d.asker.all && !d.selects(key) {
			out.Nobody = d.unselected(gw.Spec.GetSelector())
		}
	case model.KubernetesGateway:
		if out.Found && len(having) == 0 && d.asker.all && !d.selects(key) {
			out.Nobody = d.unselected(map[string]string{"gateway.networking.k8s.io/gateway-name": key.Name}) +
				"; where spec.addresses names a Service, they are those behind it"
		}
	case model.EnvoyFilter:
		out.Problems = append(out.Problems, d.idle(key, out.Problems)...)
	}
}

// maxPatched is the maximum number of proxies whose resources are searched for effects of patches.
const maxPatched = 100

// idle returns warnings about the patches of an EnvoyFilter that change nothing of the proxies that
// it selects, without those that have a problem.
func (d debugger) idle(key model.Key, known []report.Problem) []report.Problem {
	obj := d.cfg.object(key)
	if obj == nil || d.cfg.Preview == nil {
		return nil
	}
	spec, ok := obj.Spec.(*networkingv1alpha3.EnvoyFilter)
	if !ok {
		return nil
	}
	g, selected := d.cfg.Preview(), 0
	hit := map[int]bool{}
	for _, st := range d.visible() {
		if !st.Follows || st.Objects || !d.mesh.EnvoyFilters.For(st.Proxy).Contain(key) {
			continue
		}
		if selected++; selected > maxPatched || len(hit) == len(spec.GetConfigPatches()) {
			break
		}
		for _, typeURL := range patchedTypes {
			for _, h := range g.Hits(d.mesh, st.Proxy, typeURL) {
				if h.Patch.Filter.Config.Key == key {
					hit[h.Patch.Index] = true
				}
			}
		}
	}
	var out []report.Problem
	for i, p := range spec.GetConfigPatches() {
		at := field.Index("spec.configPatches", i)
		if selected == 0 || hit[i] || slices.ContainsFunc(known, func(p report.Problem) bool { return strings.HasPrefix(p.Reason, at) }) {
			continue
		}
		out = append(out, report.Problem{Object: refOf(key), Source: obj.Source, Warning: true, Reason: patch.Idle(i, p, min(selected, maxPatched))})
	}
	return out
}

// selects reports whether a gateway that is connected has the labels of a Gateway, or
// of one that was made of the object. Other Gateways may have taken its ports.
func (d debugger) selects(key model.Key) bool {
	return slices.ContainsFunc(d.visible(), func(st *Stream) bool {
		p := st.Proxy
		return p.Role == node.Router && slices.ContainsFunc(d.mesh.Gateways.For(p.Namespace, p.Labels, d.cfg.GatewaysOwnNamespace), func(gw *snapshot.Gateway) bool {
			return gw.Config.Key == key || slices.Contains(gw.Config.From, key)
		})
	})
}

// unselected says that no gateway has some labels.
func (d debugger) unselected(selector map[string]string) string {
	gateways := 0
	for _, st := range d.visible() {
		if st.Proxy.Role == node.Router && !st.Objects {
			gateways++
		}
	}
	var words []string
	for _, name := range slices.Sorted(maps.Keys(selector)) {
		words = append(words, name+"="+selector[name])
	}
	text := "it is for gateways with the labels " + strings.Join(words, ",")
	if len(words) == 0 {
		text = "it is for all gateways"
	}
	switch gateways {
	case 0:
		return text + ", and no gateway is connected"
	case 1:
		return text + ", and the 1 connected gateway is not among them"
	}
	return fmt.Sprintf("%s, and none of the %d connected gateways is among them", text, gateways)
}

// lacking says which credentials of a Gateway proxies cannot be given, and why: as
// they ask for them, of their own namespace.
func (d debugger) lacking(spec *networkingv1alpha3.Gateway, having []*Stream) []string {
	var out []string
	asked := map[string]bool{}
	for _, st := range having {
		for i, s := range spec.GetServers() {
			for _, name := range credentialNames(s.GetTls()) {
				what := fmt.Sprintf("%d/%s/%s", i, name, st.Proxy.Namespace)
				if asked[what] {
					continue
				}
				asked[what] = true
				if err := d.source.CredentialFault(d.mesh, st, name); err != nil {
					out = append(out, fmt.Sprintf("spec.servers[%d].tls: proxies of the namespace %s do not receive the credential %q: %v", i, st.Proxy.Namespace, name, err))
				}
			}
		}
	}
	slices.Sort(out)
	return out
}

func credentialNames(tls *networkingv1alpha3.ServerTLSSettings) []string {
	if names := tls.GetCredentialNames(); len(names) > 0 {
		return names
	}
	if name := tls.GetCredentialName(); name != "" && !strings.HasPrefix(name, "builtin://") {
		return []string{name}
	}
	return nil
}
