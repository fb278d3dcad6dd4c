// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package autoregister

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/health"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// The annotations of a registered entry, as in Istio. Times have the format of RFC 3339.
const (
	groupAnnotation        = "istio.io/autoRegistrationGroup"
	controllerAnnotation   = "istio.io/workloadController"
	connectedAnnotation    = "istio.io/connectedAt"
	disconnectedAnnotation = "istio.io/disconnectedAt"
	// contentAnnotation contains a hash of the registered content. While the hash is the same,
	// changes that users make to the entry are kept.
	contentAnnotation = "outrigger-mesh/registered"
)

// reserved are the annotations that a group cannot set on its entries.
var reserved = []string{groupAnnotation, controllerAnnotation, connectedAnnotation, disconnectedAnnotation, contentAnnotation}

// addressOf returns the address with which a proxy is registered, the first one that it reports.
func addressOf(p model.ConnectedProxy) netip.Addr {
	if len(p.Proxy.IPs) == 0 {
		return netip.Addr{}
	}
	return parse(p.Proxy.IPs[0])
}

// parse parses an address. It returns the zero Addr if the address is invalid.
func parse(address string) netip.Addr {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return netip.Addr{}
	}
	return ip.Unmap()
}

// addressFault returns why a proxy may not have an entry with its address, or "".
func addressFault(p model.ConnectedProxy, strict bool) string {
	ip := addressOf(p)
	switch {
	case !ip.IsValid() || ip.Zone() != "" || ip.IsUnspecified() || ip.IsMulticast():
		return fmt.Sprintf("others cannot reach it at %v: set INSTANCE_IP at the agent", p.Proxy.IPs)
	case ip.IsLoopback() && !p.Source.IsLoopback():
		return fmt.Sprintf("it claims the address %s, but connects from %s: others would reach themselves; set INSTANCE_IP at the agent", ip, p.Source)
	case strict && !ip.IsLoopback() && ip != p.Source:
		return fmt.Sprintf("it claims the address %s, but connects from %s, and OUTRIGGER_WORKLOAD_ENTRY_STRICT_ADDRESS is on: set INSTANCE_IP at the agent to the address that it connects from", ip, p.Source)
	}
	return ""
}

// accountOf returns the service account of the workloads of a group. As in Istio's tools, it is
// "default" unless the group sets it.
func accountOf(group *networkingv1alpha3.WorkloadGroup) string {
	return cmp.Or(group.GetTemplate().GetServiceAccount(), "default")
}

// isRegistered reports whether an entry was created by registration.
func isRegistered(c *model.Config) bool { return c != nil && c.Annotations[groupAnnotation] != "" }

func entrySpec(c *model.Config) *networkingv1alpha3.WorkloadEntry {
	if c == nil {
		return nil
	}
	spec, _ := c.Spec.(*networkingv1alpha3.WorkloadEntry)
	return spec
}

func groupSpec(c *model.Config) *networkingv1alpha3.WorkloadGroup {
	if c == nil {
		return nil
	}
	spec, _ := c.Spec.(*networkingv1alpha3.WorkloadGroup)
	return spec
}

// localityLabel sets the locality of objects without a locality field. Entries have one.
const localityLabel = "istio-locality"

// entryOf returns the entry of a proxy of a group: the metadata and the template of the group,
// with the address of the proxy and its verified service account. It ignores labels that the proxy
// reports, because labels determine the services of a workload. It uses the network and locality
// of the proxy only if the group sets none.
func entryOf(key model.Key, p model.ConnectedProxy, group *model.Config) *model.Config {
	g := groupSpec(group)
	spec := &networkingv1alpha3.WorkloadEntry{}
	if t := g.GetTemplate(); t != nil {
		spec = proto.Clone(t).(*networkingv1alpha3.WorkloadEntry)
	}
	labels := map[string]string{}
	maps.Copy(labels, spec.GetLabels())
	maps.Copy(labels, g.GetMetadata().GetLabels())
	locality := strings.ReplaceAll(labels[localityLabel], ".", "/")
	delete(labels, localityLabel)
	spec.Labels = labels
	spec.Address = addressOf(p).String()
	spec.ServiceAccount = p.Proxy.ServiceAccount
	spec.Network = cmp.Or(spec.GetNetwork(), p.Proxy.Network)
	spec.Locality = cmp.Or(spec.GetLocality(), locality, p.Locality)

	annotations := maps.Clone(g.GetMetadata().GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	for _, name := range reserved {
		delete(annotations, name)
	}
	if _, said := annotations[health.ChecksAnnotation]; !said && (p.Probed || g.GetProbe() != nil) {
		annotations[health.ChecksAnnotation] = "true"
	}
	annotations[groupAnnotation] = group.Name
	c := &model.Config{Key: key, APIVersion: group.APIVersion, Labels: maps.Clone(labels), Annotations: annotations, Spec: spec}
	annotations[contentAnnotation] = contentOf(c)
	return c
}

// contentOf returns a hash of the registered content.
func contentOf(c *model.Config) string {
	h := fnv.New64a()
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(entrySpec(c))
	if err != nil {
		return "" // invalid UTF-8, which validation rejects
	}
	_, _ = h.Write(raw) // writing to a hash never fails
	for _, name := range slices.Sorted(maps.Keys(c.Annotations)) {
		_, _ = fmt.Fprintf(h, "%q=%q", name, c.Annotations[name])
	}
	return fmt.Sprintf("%016x", h.Sum64())
}

// renew updates an entry to the content that registration produces now. If that has not changed,
// it keeps the changes of users. It always keeps labels that users added to the object.
func renew(c, now *model.Config) {
	if c.Annotations[contentAnnotation] == now.Annotations[contentAnnotation] {
		return
	}
	before := entrySpec(c).GetLabels()
	labels := maps.Clone(now.Labels)
	for k, v := range c.Labels {
		if _, given := before[k]; !given {
			labels[k] = v
		}
	}
	c.Labels, c.Spec = labels, model.CloneSpec(now.Spec)
	delete(c.Annotations, health.ChecksAnnotation)
	maps.Copy(c.Annotations, now.Annotations)
}
