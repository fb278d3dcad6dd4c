// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// served is a port and host that a Gateway serves at a workload.
type served struct {
	workload string
	port     uint32
	bind     string
	host     string // as written, also with a namespace
}

// gateways checks Gateways, and those of one workload against each other.
func (a *analysis) gateways() {
	routed := a.routedGateways()
	hosts, certificates := map[served]*model.Config{}, map[objectName]*model.Config{}
	reached := a.reachedPorts()
	each(a, model.Gateway, func(c *model.Config, spec *networkingv1alpha3.Gateway) {
		workloads := a.selected("", spec.GetSelector())
		if a.workloads.size() > 0 && len(workloads) == 0 {
			a.report("IST0101", c, fmt.Sprintf("spec.selector: no workload has the labels %s, so nothing serves the Gateway.", labelText(spec.GetSelector())),
				"Correct the selector, or the labels of the gateway.")
		}
		// Gateways with equal selectors meet, also where no workload is known.
		keys := []string{labelText(spec.GetSelector())}
		for _, w := range workloads {
			keys = append(keys, w.Namespace+"/"+w.Name)
		}
		a.sameHosts(c, spec, keys, hosts)
		a.sameCertificates(c, spec, keys, certificates)
		a.credentials(c, spec, workloads)
		a.gatewayPorts(c, spec, workloads, reached)
		if !routed[nameOf(c)] && len(c.From) == 0 && len(a.kinds[model.VirtualService]) > 0 {
			a.report("OUT0011", c, "No VirtualService names the Gateway, so its requests are answered with 404.", "Add a VirtualService, or remove the Gateway.")
		}
	})
}

// routedGateways returns the names of the Gateways that VirtualServices name.
func (a *analysis) routedGateways() map[string]bool {
	out := map[string]bool{}
	each(a, model.VirtualService, func(c *model.Config, spec *networkingv1alpha3.VirtualService) {
		for _, name := range spec.GetGateways() {
			out[snapshot.GatewayName(name, c.Namespace)] = true
		}
	})
	return out
}

// sameHosts finds ports and hosts that an older Gateway of a workload has too.
func (a *analysis) sameHosts(c *model.Config, spec *networkingv1alpha3.Gateway, keys []string, hosts map[served]*model.Config) {
	for i, s := range spec.GetServers() {
		others, seen := []string{}, map[string]bool{}
		for _, h := range s.GetHosts() {
			for _, workload := range keys {
				a.steps++
				key := served{workload, s.GetPort().GetNumber(), s.GetBind(), strings.ToLower(h)}
				switch other := hosts[key]; {
				case other == nil:
					hosts[key] = c
				case other != c && !seen[nameOf(other)]:
					seen[nameOf(other)] = true
					others = append(others, nameOf(other))
				}
			}
		}
		if len(others) > 0 {
			a.report("IST0145", c, fmt.Sprintf("spec.servers[%d]: the older Gateway %s has the port %d and a host of it at the same workload.", i, names(others), s.GetPort().GetNumber()),
				"Remove the host from one of them, or merge the Gateways.")
		}
	}
}

// secretOf returns where the Secret of a credential is, as seen from a namespace of gateways.
func secretOf(credential, namespace string) objectName {
	credential = strings.TrimPrefix(strings.TrimPrefix(credential, "kubernetes-gateway://"), "kubernetes://")
	if of, name, ok := strings.Cut(credential, "/"); ok {
		return objectName{of, name}
	}
	return objectName{namespace, credential}
}

// sameCertificates finds certificates that an older Gateway of a workload serves too.
func (a *analysis) sameCertificates(c *model.Config, spec *networkingv1alpha3.Gateway, keys []string, seen map[objectName]*model.Config) {
	for i, s := range spec.GetServers() {
		of := s.GetTls().GetCredentialName()
		if of == "" {
			of = s.GetTls().GetServerCertificate()
		}
		if of == "" {
			continue
		}
		for _, workload := range keys {
			a.steps++
			key := objectName{workload, of}
			other := seen[key]
			if other == nil {
				seen[key] = c
			} else if other != c {
				a.report("IST0138", c, fmt.Sprintf("spec.servers[%d].tls: the Gateway %s serves the certificate %q too, so browsers reuse connections for the hosts of both and get 404.", i, nameOf(other), of),
					"Merge the Gateways, or use a certificate for each.")
				break
			}
		}
	}
}

// credentials checks that the Secrets of a Gateway exist and hold a certificate with its key.
func (a *analysis) credentials(c *model.Config, spec *networkingv1alpha3.Gateway, workloads []*Workload) {
	namespaces := map[string]bool{}
	for _, w := range workloads {
		namespaces[w.Namespace] = true
	}
	for i, s := range spec.GetServers() {
		credential := s.GetTls().GetCredentialName()
		if credential == "" || strings.Contains(credential, "builtin:") {
			continue
		}
		if len(workloads) == 0 { // the namespace of the gateway is not known: that of the Secret, if there is one
			namespaces = map[string]bool{cmp.Or(a.secretNamespace(secretOf(credential, "").name), c.Namespace): true}
		}
		for _, namespace := range slices.Sorted(maps.Keys(namespaces)) {
			at := fmt.Sprintf("spec.servers[%d].tls.credentialName", i)
			switch err, known := a.credential(secretOf(credential, namespace)); {
			case err == nil || !known:
			case errors.Is(err, credentials.ErrNotFound):
				a.report("IST0101", c, fmt.Sprintf("%s: %v, so connections to the server are refused.", at, err), "Create the Secret in the namespace of the gateway, or correct the name.")
			default:
				message, how := sentences(fmt.Sprintf("%s: %v", at, err))
				a.report("IST0161", c, message, how)
			}
		}
	}
}

// secretNamespace returns the first namespace with a Secret of a name, or "".
func (a *analysis) secretNamespace(name string) string {
	if a.secretsOf == nil {
		a.secretsOf = map[string]string{}
		for s := range a.Manifests.secrets {
			if first := a.secretsOf[s.name]; first == "" || s.namespace < first {
				a.secretsOf[s.name] = s.namespace
			}
		}
	}
	return a.secretsOf[name]
}

// credential returns an error if a Secret does not exist, or holds no certificate with its key. known is
// false if nothing is known about Secrets.
func (a *analysis) credential(name objectName) (err error, known bool) {
	s := a.Manifests.secrets[name]
	switch {
	case s != nil:
		return s.fault(name), true
	case a.Credential != nil:
		return a.Credential(name.namespace, name.name), true
	}
	return fmt.Errorf("the Secret %s/%s: %w", name.namespace, name.name, credentials.ErrNotFound), len(a.Manifests.secrets) > 0
}

// fault returns why a Secret is not a certificate with its key.
func (s *secret) fault(name objectName) error {
	c, err := credentials.Parse(name.namespace, name.name, s.data)
	if err == nil && c.Pair == nil {
		return fmt.Errorf("the Secret %s/%s has no certificate with its key; write tls.crt and tls.key", name.namespace, name.name)
	}
	return err
}

// reachedPorts returns the ports of workloads that services reach.
func (a *analysis) reachedPorts() map[string]map[uint32]bool {
	out := map[string]map[uint32]bool{}
	for _, svc := range a.Mesh.Services.Sorted {
		for _, ep := range a.endpoints(svc) {
			key := ep.Namespace + "/" + ep.Workload
			if out[key] == nil {
				out[key] = map[uint32]bool{}
			}
			out[key][ep.Port] = true
			// The control plane translates the ports of Services in the namespace of the gateway.
			if _, off := svc.Labels[model.NoPortTranslation]; !off && svc.Namespace == ep.Namespace {
				out[key][ep.ServicePort] = true
			}
		}
	}
	return out
}

// gatewayPorts finds ports that no Service of the gateway reaches.
func (a *analysis) gatewayPorts(c *model.Config, spec *networkingv1alpha3.Gateway, workloads []*Workload, reached map[string]map[uint32]bool) {
	for i, s := range spec.GetServers() {
		reachable, ok := false, false
		for _, w := range workloads {
			ports := reached[w.Namespace+"/"+w.Name]
			reachable = reachable || len(ports) > 0
			ok = ok || ports[s.GetPort().GetNumber()]
		}
		if reachable && !ok {
			a.report("IST0162", c, fmt.Sprintf("spec.servers[%d].port: no Service leads to the port %d of the gateway.", i, s.GetPort().GetNumber()),
				"Write a port of its Service or the target port, or add a port to the Service.")
		}
	}
}
