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
	Reached
}

// Reached is a port of a service that an extension provider names, as a workload reaches it.
type Reached struct {
	Service *model.Service
	Port    model.Port
	// Hidden is true if the workload's Sidecar does not import the service.
	Hidden bool
}

// unknownProvider is the error of a provider that refers to an object that does not exist.
type unknownProvider struct{ error }

// extensionProvider returns the extension provider with a name in the mesh config.
func (m *Mesh) extensionProvider(name string) (*meshv1alpha1.MeshConfig_ExtensionProvider, error) {
	providers := m.Config.GetExtensionProviders()
	i := slices.IndexFunc(providers, func(p *meshv1alpha1.MeshConfig_ExtensionProvider) bool { return p.GetName() == name })
	if i < 0 {
		return nil, unknownProvider{fmt.Errorf("the mesh config has no extension provider %q: add it to extensionProviders, or correct the name", name)}
	}
	return providers[i], nil
}

// Authorizer returns the authorizer with a name in the mesh config, as workloads of a namespace
// reach it. Their Sidecar may be nil. The error says why they cannot ask it.
func (m *Mesh) Authorizer(name, namespace string, sidecar *Sidecar) (Authorizer, error) {
	provider, err := m.extensionProvider(name)
	if err != nil {
		return Authorizer{}, err
	}
	of := meshconfig.AuthorizerOf(provider)
	if of == nil {
		return Authorizer{}, fmt.Errorf("the extension provider %q is not an authorizer: name one with envoyExtAuthzHttp or envoyExtAuthzGrpc", name)
	}
	if err := meshconfig.CheckAuthorizer(provider); err != nil {
		return Authorizer{}, fmt.Errorf("the mesh config is invalid: %w", err)
	}
	to, err := m.reach(name, of, namespace, sidecar)
	if err != nil {
		return Authorizer{}, err
	}
	return Authorizer{provider, to}, nil
}

// destination is the service that an extension provider names.
type destination interface {
	GetService() string // host or namespace/host
	GetPort() uint32
}

// reach returns the service of the extension provider with a name.
func (m *Mesh) reach(name string, of destination, namespace string, sidecar *Sidecar) (Reached, error) {
	in, host := meshconfig.ProviderService(of.GetService())
	to := Reached{Service: m.Services.chosen(m.Services.byHost[host], namespace, sidecar)}
	if to.Service == nil {
		same := slices.DeleteFunc(slices.Clone(m.Services.byHost[host]), func(s *model.Service) bool { return in != "" && s.Namespace != in })
		to.Service, to.Hidden = m.Services.chosen(same, namespace, nil), true
	}
	switch {
	case to.Service == nil:
		return Reached{}, unknownProvider{fmt.Errorf("the extension provider %q names the service %q, which is not visible in the namespace %s: correct the name, or export the service", name, of.GetService(), namespace)}
	case in != "" && to.Service.Namespace != in:
		return Reached{}, fmt.Errorf("the extension provider %q names the service %q, and workloads of the namespace %s reach the service of the same host in the namespace %s: use a host that only one service has",
			name, of.GetService(), namespace, to.Service.Namespace)
	}
	i := slices.IndexFunc(to.Service.Ports, func(p model.Port) bool { return p.Number == of.GetPort() })
	if i < 0 {
		return Reached{}, unknownProvider{fmt.Errorf("the extension provider %q names port %d, which the service %q does not have: use one of its ports", name, of.GetPort(), of.GetService())}
	}
	to.Port = to.Service.Ports[i]
	return to, nil
}

// NotAsked returns the problem of a policy whose authorizer cannot be asked.
func NotAsked(policy *model.Config, err error) model.Problem {
	var unknown unknownProvider
	return model.Problem{
		Object: policy.Key, Source: policy.Source, Dangling: errors.As(err, &unknown),
		Reason: fmt.Sprintf("spec.provider.name: requests that match the rules are denied: %s", err),
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
