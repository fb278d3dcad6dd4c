// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"errors"
	"fmt"
	"slices"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Authorizer is an external authorizer as a workload reaches it.
type Authorizer struct {
	Provider *meshv1alpha1.MeshConfig_ExtensionProvider
	Service  *model.Service
	Port     model.Port
	// Hidden is true if the workload's Sidecar does not import the service.
	Hidden bool
}

// unknownAuthorizer is the error of an authorizer that refers to an object that does not exist.
type unknownAuthorizer struct{ error }

// Authorizer returns the authorizer with a name in the mesh config, as workloads of a namespace
// reach it. Their Sidecar may be nil. The error says why they cannot ask it.
func (m *Mesh) Authorizer(name, namespace string, sidecar *Sidecar) (Authorizer, error) {
	providers := m.Config.GetExtensionProviders()
	i := slices.IndexFunc(providers, func(p *meshv1alpha1.MeshConfig_ExtensionProvider) bool { return p.GetName() == name })
	if i < 0 {
		return Authorizer{}, unknownAuthorizer{fmt.Errorf("the mesh config has no extension provider %q: add it to extensionProviders, or correct the name", name)}
	}
	of := meshconfig.AuthorizerOf(providers[i])
	if of == nil {
		return Authorizer{}, fmt.Errorf("the extension provider %q is no authorizer: name one with envoyExtAuthzHttp or envoyExtAuthzGrpc", name)
	}
	if err := meshconfig.CheckAuthorizer(providers[i]); err != nil {
		return Authorizer{}, fmt.Errorf("the mesh config is invalid: %w", err)
	}
	a := Authorizer{Provider: providers[i]}
	in, host := meshconfig.AuthorizerService(of)
	if a.Service = m.Services.chosen(m.Services.byHost[host], namespace, sidecar); a.Service == nil {
		same := slices.DeleteFunc(slices.Clone(m.Services.byHost[host]), func(s *model.Service) bool { return in != "" && s.Namespace != in })
		a.Service, a.Hidden = m.Services.chosen(same, namespace, nil), true
	}
	switch {
	case a.Service == nil:
		return Authorizer{}, unknownAuthorizer{fmt.Errorf("the extension provider %q names the service %q, which the namespace %s does not see: correct the name, or export the service", name, of.GetService(), namespace)}
	case in != "" && a.Service.Namespace != in:
		return Authorizer{}, fmt.Errorf("the extension provider %q names the service %q, and workloads of the namespace %s reach the service of the same host in the namespace %s: use a host that only one service has",
			name, of.GetService(), namespace, a.Service.Namespace)
	}
	i = slices.IndexFunc(a.Service.Ports, func(p model.Port) bool { return p.Number == of.GetPort() })
	if i < 0 {
		return Authorizer{}, unknownAuthorizer{fmt.Errorf("the extension provider %q names port %d, which the service %q does not have: use one of its ports", name, of.GetPort(), of.GetService())}
	}
	a.Port = a.Service.Ports[i]
	return a, nil
}

// NotAsked returns the problem of a policy whose authorizer cannot be asked.
func NotAsked(policy *model.Config, err error) model.Problem {
	var unknown unknownAuthorizer
	return model.Problem{
		Object: policy.Key, Source: policy.Source, Dangling: errors.As(err, &unknown),
		Reason: fmt.Sprintf("spec.provider.name: what the rules match is denied: %s", err),
	}
}

// authorizer checks that workloads in the namespace of a policy can ask its authorizer. Those that
// cannot although their policy can are reported with their listeners.
func (c *checker) authorizer(obj *model.Config) {
	spec, ok := obj.Spec.(*securityv1beta1.AuthorizationPolicy)
	if !ok || spec.GetAction() != securityv1beta1.AuthorizationPolicy_CUSTOM {
		return
	}
	if _, err := c.mesh.Authorizer(spec.GetProvider().GetName(), obj.Namespace, nil); err != nil {
		c.found = append(c.found, NotAsked(obj, err))
	}
}
