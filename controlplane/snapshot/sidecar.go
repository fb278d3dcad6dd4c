// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Sidecar is one Sidecar object. A nil *Sidecar is the implicit one, which imports everything and
// has no ingress listeners.
type Sidecar struct {
	Config *model.Config
	Spec   *networkingv1alpha3.Sidecar

	imports    imports // of all egress listeners
	importsKey string
	egress     []*EgressListener
}

// EgressListener is one egress listener of a Sidecar.
type EgressListener struct {
	Spec    *networkingv1alpha3.IstioEgressListener
	imports imports
}

// Imports reports whether the listener imports a host of a namespace.
func (l *EgressListener) Imports(namespace, host string) bool { return l.imports.hold(namespace, host) }

// Imports reports whether a listener of the Sidecar imports a host of a namespace.
func (s *Sidecar) Imports(namespace, host string) bool {
	return s == nil || s.imports.hold(namespace, host)
}

// Egress returns the egress listeners of the Sidecar.
func (s *Sidecar) Egress() []*EgressListener {
	if s == nil {
		return nil
	}
	return s.egress
}

// InboundPool returns the settings for connections to the application; may be nil.
func (s *Sidecar) InboundPool() *networkingv1alpha3.ConnectionPoolSettings {
	if s == nil {
		return nil
	}
	return s.Spec.GetInboundConnectionPool()
}

// OutboundPolicy returns the policy for traffic to unknown destinations; nil means that the mesh
// config applies.
func (s *Sidecar) OutboundPolicy() *networkingv1alpha3.OutboundTrafficPolicy {
	if s == nil {
		return nil
	}
	return s.Spec.GetOutboundTrafficPolicy()
}

// ImportsKey returns a string that is equal for Sidecars with equal imports, and empty if
// everything is imported.
func (s *Sidecar) ImportsKey() string {
	if s == nil {
		return ""
	}
	return s.importsKey
}

// Ingress returns the ingress listeners of the Sidecar.
func (s *Sidecar) Ingress() []*networkingv1alpha3.IstioIngressListener {
	if s == nil {
		return nil
	}
	return s.Spec.GetIngress()
}

// Sidecars is the index of Sidecars by workload.
type Sidecars struct {
	mesh       *Sidecar
	namespaces map[string]*sidecarNamespace
	kept       map[*model.Config]*Sidecar
	all        []*model.Config
}

type sidecarNamespace struct {
	whole     *Sidecar
	workloads selectors[*Sidecar]
}

func (s *Sidecars) objects() []*model.Config {
	if s == nil {
		return nil
	}
	return s.all
}

func newSidecars(old *Sidecars, objs []*model.Config, set settings) *Sidecars {
	s := &Sidecars{namespaces: make(map[string]*sidecarNamespace), kept: make(map[*model.Config]*Sidecar), all: objs}
	before := make(map[model.Key]*Sidecar)
	if old != nil {
		for _, sc := range old.kept {
			before[sc.Config.Key] = sc
		}
	}
	for _, obj := range objs {
		spec, ok := obj.Spec.(*networkingv1alpha3.Sidecar)
		if !ok {
			continue
		}
		sc := before[obj.Key]
		if sc == nil || !sameConfig(sc.Config, obj) {
			sc = newSidecar(obj, spec)
		}
		s.kept[sc.Config] = sc
		ns := s.namespaces[obj.Namespace]
		if ns == nil {
			ns = &sidecarNamespace{}
			s.namespaces[obj.Namespace] = ns
		}
		selector := spec.GetWorkloadSelector().GetLabels()
		switch {
		case len(selector) > 0:
			ns.workloads.add(selector, sc)
		case ns.whole == nil:
			ns.whole = sc
		}
	}
	if root := s.namespaces[set.root]; root != nil {
		s.mesh = root.whole
	}
	return s
}

// For returns the Sidecar of a workload: the oldest one whose selector matches, then that of the
// namespace, then that of the mesh, or nil if there is none.
func (s *Sidecars) For(namespace string, labels map[string]string) *Sidecar {
	if ns := s.namespaces[namespace]; ns != nil {
		if sc, ok := ns.workloads.first(labels); ok {
			return sc
		}
		if ns.whole != nil {
			return ns.whole
		}
	}
	return s.mesh
}

func newSidecar(obj *model.Config, spec *networkingv1alpha3.Sidecar) *Sidecar {
	sc := &Sidecar{Config: obj, Spec: spec}
	var all []importRule
	for _, listener := range spec.GetEgress() {
		var rules []importRule
		for _, h := range listener.GetHosts() {
			ns, host, ok := strings.Cut(h, "/")
			if !ok {
				ns, host = "*", h
			}
			if ns == "." {
				ns = obj.Namespace
			}
			rules = append(rules, importRule{namespace: ns, host: host})
		}
		sc.egress = append(sc.egress, &EgressListener{Spec: listener, imports: newImports(rules)})
		all = append(all, rules...)
	}
	sc.imports = newImports(all)
	sc.importsKey = sc.imports.key()
	return sc
}
