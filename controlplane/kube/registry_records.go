// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/registry"
)

// Labels and annotations that configure services and workloads.
const (
	tlsModeLabel          = "security.istio.io/tlsMode"
	localityLabel         = "istio-locality"
	networkLabel          = "topology.istio.io/network"
	clusterLabel          = "topology.istio.io/cluster"
	subzoneLabel          = "topology.istio.io/subzone"
	exportToAnnotation    = "networking.istio.io/exportTo"
	accountsAnnotation    = "alpha.istio.io/kubernetes-serviceaccounts"
	canonicalAnnotation   = "alpha.istio.io/canonical-serviceaccounts"
	clusterSetLabel       = "multicluster.kubernetes.io/service-name"
	gatewayPortLabel      = "networking.istio.io/gatewayPort"
	nodeSelector          = "traffic.istio.io/nodeSelector"
	distribution          = "networking.istio.io/traffic-distribution"
	serviceKind, podsKind = "Services", "Pods"
	slicesKind, nodesKind = "EndpointSlice", "Nodes"
	namespacesKind        = "Namespaces"
)

// intern returns a shared copy of a string, because pods repeat the same strings.
func intern(s string) string { return unique.Make(s).Value() }

func internAll(m map[string]string) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[intern(k)] = intern(v)
	}
	return out
}

// serviceRecord is the retained part of a Service.
type serviceRecord struct {
	service  *model.Service
	targets  []registry.TargetPort
	selector map[string]string
	// externalName is the host of a Service of type ExternalName.
	externalName string
	outside      outside
	problems     []model.Problem
}

func (r *serviceRecord) equal(o *serviceRecord) bool { return reflect.DeepEqual(r, o) }

// external reports whether the Service is an alias of another name.
func (r *serviceRecord) external() bool { return r.service.Resolution == model.ResolutionDNS }

// readService returns the record of a Service in a mesh with this DNS domain.
func readService(domain string, o *corev1.Service) *serviceRecord {
	key := model.Key{Kind: model.KubernetesService, Namespace: o.Namespace, Name: o.Name}
	r := &serviceRecord{selector: o.Spec.Selector, service: &model.Service{
		Labels:     o.Labels,
		ServiceKey: model.ServiceKey{Hostname: strings.ToLower(o.Name + "." + o.Namespace + ".svc." + domain), Namespace: o.Namespace},
		Registry:   model.RegistryKubernetes, Created: o.CreationTimestamp.Time, Source: key,
		ServiceAccounts: list(o.Annotations[accountsAnnotation]), SubjectAltNames: list(o.Annotations[canonicalAnnotation]),
		ExportTo: list(o.Annotations[exportToAnnotation]),
	}}
	if policy := o.Spec.InternalTrafficPolicy; policy != nil && *policy == corev1.ServiceInternalTrafficPolicyLocal {
		r.service.NodeLocal = true
	}
	if o.Spec.Type == corev1.ServiceTypeExternalName {
		r.service.Resolution, r.service.External = model.ResolutionDNS, true
		r.externalName, r.selector = strings.TrimSuffix(o.Spec.ExternalName, "."), nil
		if r.externalName == "" {
			r.problems = append(r.problems, model.Problem{Object: key, Reason: "spec.externalName is empty: the service has no endpoints; write a host"})
		}
	} else {
		r.service.Headless = o.Spec.ClusterIP == corev1.ClusterIPNone
		r.service.Passthrough = r.service.Headless
		for _, ip := range append([]string{o.Spec.ClusterIP}, o.Spec.ClusterIPs...) {
			if address, err := netip.ParseAddr(ip); err == nil && !slices.Contains(r.service.Addresses, address.String()) {
				r.service.Addresses = append(r.service.Addresses, address.String())
			}
		}
	}
	for _, name := range r.service.ExportTo {
		if strings.ContainsAny(name, " /\t") {
			r.warn("the annotation %s names %q, which is not a namespace: write names, \".\" or \"*\", separated by commas", exportToAnnotation, name)
		}
	}
	r.readDistribution(o)
	r.readOutside(o)
	for i := range o.Spec.Ports {
		p := &o.Spec.Ports[i]
		if p.Protocol != "" && p.Protocol != corev1.ProtocolTCP || p.Port <= 0 {
			continue // Envoy proxies only streams
		}
		r.service.Ports = append(r.service.Ports, model.Port{Name: p.Name, Number: uint32(p.Port), Protocol: model.ParseKubernetesPort(p.Name, p.AppProtocol, uint32(p.Port))})
		target := registry.TargetPort{Name: p.TargetPort.StrVal}
		if target.Name == "" {
			target.Number = uint32(cmp.Or(max(p.TargetPort.IntVal, 0), p.Port))
		}
		r.targets = append(r.targets, target)
	}
	return r
}

// readDistribution reads the traffic distribution. The field takes precedence over the annotation.
func (r *serviceRecord) readDistribution(o *corev1.Service) {
	text := o.Annotations[distribution]
	if field := o.Spec.TrafficDistribution; field != nil {
		text = *field
	}
	var ok bool
	if r.service.Distribution, ok = model.ParseDistribution(text); !ok {
		r.warn("the traffic distribution is %q, which is unknown and has no effect: write PreferSameZone, PreferSameNode or PreferClose into spec.trafficDistribution", text)
	}
}

// warn adds a warning for the author of the service.
func (r *serviceRecord) warn(format string, args ...any) {
	r.problems = append(r.problems, model.Problem{Object: r.service.Source, Warning: true, Reason: fmt.Sprintf(format, args...)})
}

// list splits a comma-separated list.
func list(text string) (out []string) {
	for _, item := range strings.Split(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	return out
}

// sliceRecord is the retained part of an EndpointSlice.
type sliceRecord struct {
	service   string // name
	ports     []slicePort
	endpoints []sliceEndpoint
}

type slicePort struct {
	name   string
	number uint32
}

// sliceEndpoint is one address that receives requests.
type sliceEndpoint struct {
	address, hostname string
	pod, uid          string // empty if the endpoint is not a pod
	node, zone        string
	// draining is true if the endpoint is terminating.
	draining bool
}

func (r *sliceRecord) equal(o *sliceRecord) bool {
	return r.service == o.service && slices.Equal(r.ports, o.ports) && slices.Equal(r.endpoints, o.endpoints)
}

// readSlice returns the record of an EndpointSlice, or nil if it contains no IP addresses of a
// Service of this cluster.
func readSlice(o *discoveryv1.EndpointSlice) *sliceRecord {
	service := o.Labels[discoveryv1.LabelServiceName]
	_, ofSet := o.Labels[clusterSetLabel]
	if service == "" || ofSet || o.AddressType == discoveryv1.AddressTypeFQDN {
		return nil
	}
	r := &sliceRecord{service: service}
	for _, p := range o.Ports {
		if p.Port == nil || *p.Port <= 0 || p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP {
			continue
		}
		port := slicePort{number: uint32(*p.Port)}
		if p.Name != nil {
			port.name = intern(*p.Name)
		}
		r.ports = append(r.ports, port)
	}
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		// With publishNotReadyAddresses, all endpoints are reported as ready.
		c := e.Conditions
		ready := c.Ready == nil || *c.Ready
		draining := !ready && (c.Serving == nil || *c.Serving) && c.Terminating != nil && *c.Terminating
		if !ready && !draining {
			continue
		}
		out := sliceEndpoint{draining: draining, hostname: text(e.Hostname), node: intern(text(e.NodeName)), zone: intern(text(e.Zone))}
		if e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
			out.pod, out.uid = e.TargetRef.Name, string(e.TargetRef.UID)
		}
		for _, address := range e.Addresses {
			if ip, err := netip.ParseAddr(address); err == nil {
				out.address = ip.String()
				r.endpoints = append(r.endpoints, out)
			}
		}
	}
	return r
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// podRecord is the retained part of a Pod.
type podRecord struct {
	labels    map[string]string
	addresses []string
	account   string
	node, uid string
	created   time.Time
	ready     bool
	hostNet   bool

	// place is derived from the record and its node; nil if they changed since.
	place *place
}

func (r *podRecord) equal(o *podRecord) bool {
	return maps.Equal(r.labels, o.labels) && slices.Equal(r.addresses, o.addresses) && r.account == o.account && r.node == o.node &&
		r.uid == o.uid && r.created.Equal(o.created) && r.ready == o.ready && r.hostNet == o.hostNet
}

// readPod returns the record of a Pod, or nil if it has terminated.
func readPod(o *corev1.Pod) *podRecord {
	if o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed {
		return nil
	}
	r := &podRecord{
		labels: internAll(o.Labels), account: intern(cmp.Or(o.Spec.ServiceAccountName, "default")), node: intern(o.Spec.NodeName),
		uid: string(o.UID), created: o.CreationTimestamp.Time, hostNet: o.Spec.HostNetwork,
	}
	for _, ip := range o.Status.PodIPs {
		r.addAddress(ip.IP)
	}
	r.addAddress(o.Status.PodIP)
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.PodReady {
			r.ready = c.Status == corev1.ConditionTrue && o.DeletionTimestamp == nil
		}
	}
	return r
}

func (r *podRecord) addAddress(text string) {
	if ip, err := netip.ParseAddr(text); err == nil && !slices.Contains(r.addresses, ip.String()) {
		r.addresses = append(r.addresses, ip.String())
	}
}

// nodeRecord is the locality of a Node (region/zone/subzone), its labels, and its external
// addresses.
type nodeRecord struct {
	locality string
	labels   map[string]string
	external []string
}

func (r *nodeRecord) equal(o *nodeRecord) bool {
	return r.locality == o.locality && maps.Equal(r.labels, o.labels) && slices.Equal(r.external, o.external)
}

func readNode(o *corev1.Node) *nodeRecord {
	l := o.Labels
	r := &nodeRecord{labels: internAll(l), locality: intern(joinLocality(
		cmp.Or(l[corev1.LabelTopologyRegion], l[corev1.LabelFailureDomainBetaRegion]),
		cmp.Or(l[corev1.LabelTopologyZone], l[corev1.LabelFailureDomainBetaZone]), l[subzoneLabel]))}
	for _, a := range o.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeExternalIP {
			r.external = append(r.external, ip.String())
		}
	}
	return r
}

func joinLocality(region, zone, subzone string) string {
	return strings.TrimRight(region+"/"+zone+"/"+subzone, "/")
}

// namespaceRecord is the set of labels of a namespace.
type namespaceRecord struct{ labels map[string]string }

func (r *namespaceRecord) equal(o *namespaceRecord) bool { return maps.Equal(r.labels, o.labels) }

func readNamespace(o *corev1.Namespace) *namespaceRecord {
	return &namespaceRecord{labels: internAll(o.Labels)}
}

// The reflector holds all objects of a list until the list is complete. To save memory, unused
// fields are removed immediately.

func trimMeta(m *metav1.ObjectMeta) { m.ManagedFields, m.OwnerReferences, m.Finalizers = nil, nil, nil }

func trimService(o *corev1.Service) {
	trimMeta(&o.ObjectMeta)
	o.Status = corev1.ServiceStatus{LoadBalancer: o.Status.LoadBalancer}
}

func trimSlice(o *discoveryv1.EndpointSlice) { trimMeta(&o.ObjectMeta); o.Annotations = nil }

func trimPod(o *corev1.Pod) {
	trimMeta(&o.ObjectMeta)
	o.Annotations = nil
	o.Spec = corev1.PodSpec{ServiceAccountName: o.Spec.ServiceAccountName, NodeName: o.Spec.NodeName, HostNetwork: o.Spec.HostNetwork}
	o.Status = corev1.PodStatus{Phase: o.Status.Phase, PodIP: o.Status.PodIP, PodIPs: o.Status.PodIPs, Conditions: o.Status.Conditions}
}

func trimNode(o *corev1.Node) {
	trimMeta(&o.ObjectMeta)
	o.Annotations, o.Spec, o.Status = nil, corev1.NodeSpec{}, corev1.NodeStatus{Addresses: o.Status.Addresses}
}

func trimNamespace(o *corev1.Namespace) { trimMeta(&o.ObjectMeta); o.Annotations = nil }
