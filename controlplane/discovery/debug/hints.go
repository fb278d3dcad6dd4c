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
	"github.com/outrigger-mesh/outrigger/controlplane/model"
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
	}
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
