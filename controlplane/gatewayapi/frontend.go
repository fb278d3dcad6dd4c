// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	"fmt"

	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// clientValidation is how a listener verifies client certificates.
type clientValidation struct {
	roots string // credential
	// optional also accepts clients without certificate, or with one that is not valid.
	optional bool
}

// frontend resolves how a listener verifies client certificates (GEP-91). A listener whose roots
// cannot be resolved is not served: it must not accept clients without verifying them.
func (c *converter) frontend(l *listener) {
	v := validationOf(l.of.spec, l.Port)
	if l.Protocol != gatewayv1.HTTPSProtocolType || v == nil {
		return
	}
	credential, why := c.clientRoots(l.of, v)
	if why.is() {
		l.credentials, l.unresolved = nil, why
		if !l.refused.is() {
			l.refused = fault{string(gatewayv1.ListenerReasonNoValidCACertificate), why.message}
		}
		return
	}
	l.clients = &clientValidation{roots: credential, optional: v.Mode == gatewayv1.AllowInsecureFallback}
}

// validationOf returns the client certificate validation for a port; nil means none.
func validationOf(spec *gatewayv1.GatewaySpec, port gatewayv1.PortNumber) *gatewayv1.FrontendTLSValidation {
	if spec.TLS == nil || spec.TLS.Frontend == nil {
		return nil
	}
	for _, p := range spec.TLS.Frontend.PerPort {
		if p.Port == port {
			return p.TLS.Validation
		}
	}
	return spec.TLS.Frontend.Default.Validation
}

// clientRoots returns the credential of the roots that client certificates are verified with.
func (c *converter) clientRoots(g *gateway, v *gatewayv1.FrontendTLSValidation) (credential string, why fault) {
	const at = "spec.tls.frontend: validation.caCertificateRefs"
	if len(v.CACertificateRefs) != 1 {
		return "", fault{string(gatewayv1.ListenerReasonInvalidCACertificateRef), fmt.Sprintf("%s has %d entries: name one ConfigMap that contains all roots", at, len(v.CACertificateRefs))}
	}
	ref := v.CACertificateRefs[0]
	if ref.Group != "" || ref.Kind != kindConfigMap {
		return "", fault{string(gatewayv1.ListenerReasonInvalidCACertificateKind), fmt.Sprintf("%s names a %s: write the kind ConfigMap and an empty group", at, ref.Kind)}
	}
	to := name{string(orElse(ref.Namespace, gatewayv1.Namespace(g.Namespace))), string(ref.Name)}
	if !c.allowed(reference{kind: model.KubernetesGateway, namespace: g.Namespace, toKind: kindConfigMap, to: to}) {
		return "", fault{
			string(gatewayv1.ListenerReasonRefNotPermitted),
			fmt.Sprintf("%s: no ReferenceGrant of namespace %s allows a Gateway of namespace %s the ConfigMap %s", at, to.namespace, g.Namespace, to.name),
		}
	}
	if err := c.rootsOf(to); err != nil {
		return "", fault{string(gatewayv1.ListenerReasonInvalidCACertificateRef), fmt.Sprintf("%s: %v", at, err)}
	}
	return configMapCredential(to), fault{}
}

// insecureFallback reports whether a Gateway accepts clients whose certificates are not valid.
func (g *gateway) insecureFallback() bool {
	for _, l := range g.listeners {
		if l.clients != nil && l.clients.optional {
			return true
		}
	}
	return false
}

// verify sets how a server verifies client certificates. A nil clientValidation changes nothing.
func (v *clientValidation) verify(tls *networkingv1alpha3.ServerTLSSettings) {
	if v == nil {
		return
	}
	tls.Mode, tls.CaCertCredentialName = networkingv1alpha3.ServerTLSSettings_MUTUAL, v.roots
	if v.optional {
		tls.Mode, tls.InsecureSkipVerify = networkingv1alpha3.ServerTLSSettings_OPTIONAL_MUTUAL, wrapperspb.Bool(true)
	}
}
