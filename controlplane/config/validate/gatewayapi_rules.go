// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// gatewayRules are the rules that compare several fields or items, by the
// type that has them; in the definitions they are written in CEL. It is never
// written to.
var gatewayRules = map[reflect.Type]gatewayCheck{
	reflect.TypeFor[gatewayv1.GatewaySpecAddress]():     gatewayRule((*checker).gatewayAddress),
	reflect.TypeFor[[]gatewayv1.GatewaySpecAddress]():   gatewayRule((*checker).gatewayAddresses),
	reflect.TypeFor[gatewayv1.GatewayInfrastructure]():  gatewayRule((*checker).gatewayInfrastructure),
	reflect.TypeFor[gatewayv1.Listener]():               gatewayRule((*checker).gatewayListener),
	reflect.TypeFor[[]gatewayv1.Listener]():             gatewayRule((*checker).gatewayListeners),
	reflect.TypeFor[gatewayv1.ListenerEntry]():          gatewayRule((*checker).listenerEntry),
	reflect.TypeFor[[]gatewayv1.ListenerEntry]():        gatewayRule((*checker).listenerEntries),
	reflect.TypeFor[gatewayv1.ListenerTLSConfig]():      gatewayRule((*checker).gatewayListenerTLS),
	reflect.TypeFor[gatewayv1.BackendTLSPolicySpec]():   gatewayRule((*checker).policyTargets),
	reflect.TypeFor[gatewayv1.SubjectAltName]():         gatewayRule((*checker).subjectAltName),
	reflect.TypeFor[[]gatewayv1.ParentReference]():      gatewayRule((*checker).parentReferences),
	reflect.TypeFor[gatewayv1.BackendObjectReference](): gatewayRule((*checker).backendReference),
	reflect.TypeFor[gatewayv1.TLSRouteSpec]():           gatewayRule((*checker).tlsRouteHosts),

	reflect.TypeFor[[]gatewayv1.HTTPRouteRule]():         gatewayRule((*checker).httpRouteRules),
	reflect.TypeFor[gatewayv1.HTTPRouteRule]():           gatewayRule((*checker).httpRouteRule),
	reflect.TypeFor[[]gatewayv1.HTTPRouteFilter]():       gatewayRule((*checker).httpRouteFilters),
	reflect.TypeFor[gatewayv1.HTTPRouteFilter]():         gatewayRule((*checker).httpRouteFilter),
	reflect.TypeFor[gatewayv1.HTTPPathMatch]():           gatewayRule((*checker).httpPathMatch),
	reflect.TypeFor[gatewayv1.HTTPPathModifier]():        gatewayRule((*checker).httpPathModifier),
	reflect.TypeFor[gatewayv1.HTTPCORSFilter]():          gatewayRule((*checker).httpCORS),
	reflect.TypeFor[gatewayv1.HTTPExternalAuthFilter]():  gatewayRule((*checker).httpExternalAuth),
	reflect.TypeFor[gatewayv1.HTTPRequestMirrorFilter](): gatewayRule((*checker).httpMirror),
	reflect.TypeFor[gatewayv1.Fraction]():                gatewayRule((*checker).fraction),
	reflect.TypeFor[gatewayv1.HTTPRouteTimeouts]():       gatewayRule((*checker).httpTimeouts),
	reflect.TypeFor[gatewayv1.SessionPersistence]():      gatewayRule((*checker).sessionPersistence),
	reflect.TypeFor[[]gatewayv1.GRPCRouteRule]():         gatewayRule((*checker).grpcRouteRules),
	reflect.TypeFor[[]gatewayv1.GRPCRouteFilter]():       gatewayRule((*checker).grpcRouteFilters),
	reflect.TypeFor[gatewayv1.GRPCRouteFilter]():         gatewayRule((*checker).grpcRouteFilter),
	reflect.TypeFor[gatewayv1.GRPCMethodMatch]():         gatewayRule((*checker).grpcMethodMatch),
}

type gatewayCheck func(c *checker, v reflect.Value, path string)

// gatewayRule adapts a rule to the type of its value.
func gatewayRule[T any](rule func(*checker, T, string)) gatewayCheck {
	return func(c *checker, v reflect.Value, path string) {
		if value, ok := v.Interface().(T); ok {
			rule(c, value, path)
		}
	}
}

// deref returns what p points to, or the zero value.
func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func (c *checker) gatewayAddress(a gatewayv1.GatewaySpecAddress, path string) {
	if deref(a.Type) == gatewayv1.HostnameAddressType && a.Value != "" && !hostPattern.MatchString(a.Value) {
		c.errorf(path+".value", "is %s: write a host name in lower case, such as gw.example.com", field.Quote(a.Value))
	}
}

func (c *checker) gatewayAddresses(list []gatewayv1.GatewaySpecAddress, path string) {
	seen := map[string]int{}
	for i, a := range list {
		t := deref(a.Type)
		if a.Value == "" || t != gatewayv1.IPAddressType && t != gatewayv1.HostnameAddressType {
			continue
		}
		key := string(t) + " " + a.Value
		if first, ok := seen[key]; ok {
			c.errorf(field.Index(path, i)+".value", "is %s, as in %s: remove one", field.Quote(a.Value), field.Index(path, first))
			continue
		}
		seen[key] = i
	}
}

func (c *checker) gatewayInfrastructure(in gatewayv1.GatewayInfrastructure, path string) {
	for _, k := range slices.Sorted(maps.Keys(in.Annotations)) {
		c.metadataKey(string(k), path+".annotations")
	}
	for _, k := range slices.Sorted(maps.Keys(in.Labels)) {
		c.metadataKey(string(k), path+".labels")
	}
}

// metadataKey checks the key of a label or annotation.
func (c *checker) metadataKey(k, path string) {
	prefix, _, _ := strings.Cut(k, "/")
	switch {
	case !keyPattern.MatchString(k):
		c.errorf(field.Key(path, k), "has a key that is not a label key: write letters, digits, \"-\", \"_\" and \".\", optionally after a domain and \"/\"")
	case len(prefix) >= longest:
		c.errorf(field.Key(path, k), "has a key whose part before \"/\" has %d characters: at most 252 are allowed", len(prefix))
	}
}

func (c *checker) gatewayListener(l gatewayv1.Listener, path string) {
	at := path + ".tls"
	switch l.Protocol {
	case gatewayv1.HTTPProtocolType, gatewayv1.TCPProtocolType, gatewayv1.UDPProtocolType:
		if l.TLS != nil {
			c.errorf(at, "is set with the protocol %s, which has no TLS: remove it, or write the protocol HTTPS or TLS", l.Protocol)
		}
	case gatewayv1.HTTPSProtocolType:
		if l.TLS != nil && deref(l.TLS.Mode) != gatewayv1.TLSModeTerminate {
			c.errorf(at+".mode", "is %s with the protocol HTTPS: write Terminate, or the protocol TLS", deref(l.TLS.Mode))
		}
	case gatewayv1.TLSProtocolType:
		if l.TLS == nil {
			c.errorf(at, "is missing: the protocol TLS needs it; write mode and certificateRefs")
		}
	}
	if (l.Protocol == gatewayv1.TCPProtocolType || l.Protocol == gatewayv1.UDPProtocolType) && l.Hostname != nil {
		c.errorf(path+".hostname", "is %s with the protocol %s, which has no hosts: remove it", field.Quote(string(*l.Hostname)), l.Protocol)
	}
}

func (c *checker) gatewayListeners(list []gatewayv1.Listener, path string) {
	type place struct {
		port           gatewayv1.PortNumber
		protocol, host string
		any            bool
	}
	seen := map[place]int{}
	for i, l := range list {
		key := place{port: l.Port, protocol: string(l.Protocol), host: string(deref(l.Hostname)), any: l.Hostname == nil}
		if first, ok := seen[key]; ok {
			c.errorf(field.Index(path, i), "has the port %d, the protocol %s and the hostname %s, as %s: change one of them",
				l.Port, l.Protocol, field.Quote(key.host), field.Index(path, first))
			continue
		}
		seen[key] = i
	}
}

func (c *checker) listenerEntry(l gatewayv1.ListenerEntry, path string) {
	c.gatewayListener(gatewayv1.Listener(l), path)
}

func (c *checker) listenerEntries(list []gatewayv1.ListenerEntry, path string) {
	listeners := make([]gatewayv1.Listener, len(list))
	for i, l := range list {
		listeners[i] = gatewayv1.Listener(l)
	}
	c.gatewayListeners(listeners, path)
}

func (c *checker) gatewayListenerTLS(t gatewayv1.ListenerTLSConfig, path string) {
	if deref(t.Mode) == gatewayv1.TLSModeTerminate && len(t.CertificateRefs) == 0 && len(t.Options) == 0 {
		c.errorf(path+".certificateRefs", "is empty: the mode Terminate needs certificateRefs or options")
	}
}

func (c *checker) policyTargets(s gatewayv1.BackendTLSPolicySpec, path string) {
	path += ".targetRefs"
	type target struct {
		gatewayv1.LocalPolicyTargetReference
		section gatewayv1.SectionName
		named   bool
	}
	seen, shapes := firsts[target]{}, firsts[target]{}
	for i, r := range s.TargetRefs {
		section := deref(r.SectionName)
		whole := target{r.LocalPolicyTargetReference, section, section != ""}
		j, ok := shapes.earliest(target{r.LocalPolicyTargetReference, "", section == ""})
		if k, found := seen.earliest(whole); found && (!ok || k < j) {
			j, ok = k, true
		}
		if ok {
			c.sections(section, deref(s.TargetRefs[j].SectionName), field.Index(path, i), field.Index(path, j))
		}
		seen.add(i, whole)
		shapes.add(i, target{r.LocalPolicyTargetReference, "", section != ""})
	}
	v := s.Validation
	roots, wellKnown := len(v.CACertificateRefs) > 0, deref(v.WellKnownCACertificates) != ""
	switch {
	case roots && wellKnown:
		c.errorf("spec.validation", "has caCertificateRefs and wellKnownCACertificates: remove one")
	case !roots && !wellKnown:
		c.errorf("spec.validation", "has neither caCertificateRefs nor wellKnownCACertificates: write one of them")
	}
}

// sections says what is wrong with the section names of two references to one
// object.
func (c *checker) sections(a, b gatewayv1.SectionName, path, other string) {
	if (a == "") != (b == "") {
		c.errorf(path+".sectionName", "is %s: it names the same object as %s; write sectionName in both", field.Quote(string(a)), other)
		return
	}
	c.errorf(path+".sectionName", "is %s: it names the same object and section as %s; remove one or write another sectionName", field.Quote(string(a)), other)
}

func (c *checker) subjectAltName(n gatewayv1.SubjectAltName, path string) {
	c.union(path, string(n.Type), []member{
		{"Hostname", "hostname", n.Hostname != ""},
		{"URI", "uri", n.URI != ""},
	})
}

// member is one field of a union: a struct whose field type names the only
// other field that is set.
type member struct {
	value, field string
	set          bool
}

func (c *checker) union(path, value string, members []member) {
	for _, m := range members {
		switch {
		case m.set && m.value != value:
			c.errorf(path+"."+m.field, "is set, and %s.type is %s: remove it, or write type: %s", path, field.Quote(value), m.value)
		case !m.set && m.value == value:
			c.errorf(path+"."+m.field, "is missing: type: %s needs it", m.value)
		}
	}
}

func (c *checker) parentReferences(refs []gatewayv1.ParentReference, path string) {
	type parent struct {
		group     gatewayv1.Group
		kind      gatewayv1.Kind
		namespace gatewayv1.Namespace
		name      gatewayv1.ObjectName
		section   gatewayv1.SectionName
		port      gatewayv1.PortNumber
	}
	// A shape says only whether there are a section and a port.
	shape := func(p parent, section, port bool) parent {
		p.section, p.port = "", 0
		if section {
			p.section = "*"
		}
		if port {
			p.port = 1
		}
		return p
	}
	seen, shapes := firsts[parent]{}, firsts[parent]{}
	for i, r := range refs {
		p := parent{deref(r.Group), deref(r.Kind), deref(r.Namespace), r.Name, deref(r.SectionName), deref(r.Port)}
		section, port := p.section != "", p.port != 0
		other, differs := shapes.earliest(shape(p, !section, port), shape(p, section, !port), shape(p, !section, !port))
		same, repeats := seen.earliest(p)
		switch {
		case differs && (!repeats || other < same):
			c.errorf(field.Index(path, i), "names the same parent as %s, and only one of them has sectionName or port: write the same of them in both", field.Index(path, other))
		case repeats:
			c.errorf(field.Index(path, i), "names the same parent as %s: remove one, or write different sectionName or port", field.Index(path, same))
		}
		seen.add(i, p)
		shapes.add(i, shape(p, section, port))
	}
}

func (c *checker) backendReference(r gatewayv1.BackendObjectReference, path string) {
	if deref(r.Group) == "" && deref(r.Kind) == "Service" && r.Port == nil {
		c.errorf(path+".port", "is missing: a Service needs it")
	}
}

func (c *checker) tlsRouteHosts(s gatewayv1.TLSRouteSpec, path string) {
	for i, h := range s.Hostnames {
		if _, err := netip.ParseAddr(string(h)); err == nil {
			c.errorf(field.Index(path+".hostnames", i), "is %s, an IP address: TLS server names are host names; write one", field.Quote(string(h)))
		}
	}
}
