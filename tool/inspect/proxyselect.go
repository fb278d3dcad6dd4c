// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/output"
)

// extensions is the part with the filters that Envoy requests by name.
const extensions = "ecds"

// part is a part of the configuration of a proxy.
type part struct {
	name    string
	aliases []string
	header  []string
	// optional are the columns that are left out if they have no values.
	optional []string
	// short is the column that is shortened first if the table is too wide.
	short   string
	filters []string
	// keep reports whether a resource is selected. It removes from the resource what is not.
	keep func(selection, resource) bool
	// rows returns the rows of a resource, with all values if all is true.
	rows func(r resource, all bool) [][]string
}

// parts returns the parts of the configuration of a proxy.
func parts() []part {
	return []part{
		{
			"clusters",
			[]string{"cluster", "c"},
			[]string{"SERVICE FQDN", "PORT", "SUBSET", "DIRECTION", "TYPE", "STATUS", "DESTINATION RULE"},
			[]string{"DESTINATION RULE", "STATUS"},
			"TYPE",
			[]string{"direction", "fqdn", "port", "subset"},
			selection.keepCluster,
			clusterRows,
		},
		{
			"listeners",
			[]string{"listener", "l"},
			[]string{"ADDRESSES", "PORT", "MATCH", "DESTINATION", "STATUS"},
			[]string{"STATUS"},
			"",
			[]string{"address", "name", "port", "type"},
			selection.keepListener,
			listenerRows,
		},
		{
			"routes",
			[]string{"route", "r"},
			[]string{"NAME", "VHOST NAME", "DOMAINS", "MATCH", "VIRTUAL SERVICE"},
			[]string{"VIRTUAL SERVICE"},
			"",
			[]string{"name"},
			func(s selection, r resource) bool { return s.name == "" || s.name == r.name },
			routeRows,
		},
		{
			"endpoints",
			[]string{"endpoint", "ep"},
			[]string{"ENDPOINT", "STATUS", "OUTLIER CHECK", "CLUSTER"},
			[]string{"STATUS", "OUTLIER CHECK"},
			"ENDPOINT",
			[]string{"address", "cluster", "port", "status"},
			selection.keepEndpoints,
			endpointRows,
		},
		{
			extensions,
			[]string{"ec"},
			[]string{"ECDS NAME", "TYPE"}, // as istioctl
			nil,
			"",
			nil,
			func(selection, resource) bool { return true },
			extensionRows,
		},
	}
}

// selection are the filters of resources. An empty one selects all.
type selection struct {
	fqdn, subset, direction, name, cluster, address, kind, status string
	port                                                          uint32
}

// add adds the flags of filters to a command.
func (s *selection) add(cmd *cobra.Command, filters []string) {
	for _, name := range filters {
		switch name {
		case "fqdn":
			cmd.Flags().StringVar(&s.fqdn, name, "", "clusters of services with this text in their name")
		case "subset":
			cmd.Flags().StringVar(&s.subset, name, "", "clusters of this subset")
		case "direction":
			cmd.Flags().StringVar(&s.direction, name, "", "clusters of this direction: "+output.OneOf(directions()))
			completeValue(cmd, name, directions)
		case "name":
			cmd.Flags().StringVar(&s.name, name, "", "listeners and routes with this name")
		case "cluster":
			cmd.Flags().StringVar(&s.cluster, name, "", "endpoints of this cluster")
		case "address":
			cmd.Flags().StringVar(&s.address, name, "", "listeners and endpoints with this address")
		case "port":
			cmd.Flags().Uint32Var(&s.port, name, 0, "clusters, listeners and endpoints with this port")
		case "type":
			cmd.Flags().StringVar(&s.kind, name, "", "listeners of this type: "+output.OneOf(listenerTypes()))
			completeValue(cmd, name, listenerTypes)
		case "status":
			cmd.Flags().StringVar(&s.status, name, "", "endpoints with this health: "+output.OneOf(healths())+"; healthy ones include those of unknown health")
			completeValue(cmd, name, healths)
		}
	}
}

// listenerTypes returns the types of listeners, by what their filter chains contain.
func listenerTypes() []string { return []string{"http", "tcp", "http+tcp", "unknown"} }

// directions returns the directions of clusters.
func directions() []string { return []string{"inbound", "outbound"} }

// healths returns the values that select endpoints.
func healths() []string { return []string{"healthy", "degraded", "unhealthy", "draining", "timeout"} }

// known returns an error if a filter has an unknown value.
func (s selection) known() error {
	for _, of := range []struct {
		name, value string
		values      []string
	}{{"type", s.kind, listenerTypes()}, {"status", s.status, healths()}, {"direction", s.direction, directions()}} {
		if of.value != "" && !slices.Contains(of.values, strings.ToLower(of.value)) {
			return fmt.Errorf("--%s %s is unknown: write %s", of.name, of.value, output.OneOf(of.values))
		}
	}
	return nil
}

// keep removes the resources of a part that are not selected, and sorts the others.
func (c *configuration) keep(p part, s selection) {
	c.resources[p.name] = slices.DeleteFunc(c.resources[p.name], func(r resource) bool { return !p.keep(s, r) })
	slices.SortStableFunc(c.resources[p.name], func(a, b resource) int {
		if p.name != "clusters" {
			return strings.Compare(a.name, b.name)
		}
		x, y := clusterName(a.name), clusterName(b.name)
		return cmp.Or(
			strings.Compare(x.host, y.host), cmp.Compare(x.port, y.port),
			strings.Compare(x.subset, y.subset), strings.Compare(a.name, b.name),
		)
	})
}

// clusterParts are the parts of the name of a cluster.
type clusterParts struct {
	direction, subset, host string
	port                    uint32
}

// clusterName splits the name of a cluster, as in outbound|80|v1|catalog.shop.svc.cluster.local. Any
// other name is a host.
func clusterName(name string) clusterParts {
	words := strings.SplitN(name, "|", 4)
	if len(words) < 4 {
		return clusterParts{host: name}
	}
	port, err := strconv.ParseUint(words[1], 10, 16)
	if err != nil {
		return clusterParts{host: name}
	}
	return clusterParts{direction: words[0], subset: words[2], host: words[3], port: uint32(port)}
}

func (s selection) keepCluster(r resource) bool {
	c := clusterName(r.name)
	return strings.Contains(c.host, s.fqdn) && (s.subset == "" || s.subset == c.subset) &&
		(s.direction == "" || strings.EqualFold(s.direction, c.direction)) && (s.port == 0 || s.port == c.port)
}

func (s selection) keepListener(r resource) bool {
	l := r.message.(*listenerv3.Listener)
	return (s.name == "" || s.name == r.name) && slices.ContainsFunc(addressesOf(l), s.keepAddress) &&
		(s.kind == "" || strings.EqualFold(s.kind, listenerType(l)))
}

// keepAddress reports whether an address has the selected host and port.
func (s selection) keepAddress(a *corev3.Address) bool {
	host, port := hostPort(a)
	return (s.address == "" || s.address == host) && (s.port == 0 || s.port == port)
}

func (s selection) keepEndpoints(r resource) bool {
	if s.cluster != "" && s.cluster != r.name {
		return false
	}
	if s.address == "" && s.port == 0 && s.status == "" {
		return true
	}
	kept := 0
	for _, l := range r.message.(*endpointv3.ClusterLoadAssignment).GetEndpoints() {
		l.LbEndpoints = slices.DeleteFunc(l.LbEndpoints, func(e *endpointv3.LbEndpoint) bool {
			health := e.GetHealthStatus()
			if health == corev3.HealthStatus_UNKNOWN { // which Envoy treats as healthy
				health = corev3.HealthStatus_HEALTHY
			}
			return !s.keepAddress(e.GetEndpoint().GetAddress()) || s.status != "" && !strings.EqualFold(s.status, health.String())
		})
		kept += len(l.GetLbEndpoints())
	}
	return kept > 0
}

// addressesOf returns the addresses of a listener.
func addressesOf(l *listenerv3.Listener) []*corev3.Address {
	list := []*corev3.Address{l.GetAddress()}
	for _, a := range l.GetAdditionalAddresses() {
		list = append(list, a.GetAddress())
	}
	return list
}

// hostPort returns the host and the port of an address: the path of a socket, or the name of an
// internal listener, has no port.
func hostPort(a *corev3.Address) (string, uint32) {
	switch {
	case a.GetPipe() != nil:
		return a.GetPipe().GetPath(), 0
	case a.GetEnvoyInternalAddress() != nil:
		return "internal " + a.GetEnvoyInternalAddress().GetServerListenerName(), 0
	}
	return a.GetSocketAddress().GetAddress(), a.GetSocketAddress().GetPortValue()
}

// clusterRows returns the row of a cluster.
func clusterRows(r resource, _ bool) [][]string {
	c := r.message.(*clusterv3.Cluster)
	name, kind := clusterName(r.name), c.GetType().String()
	if own := c.GetClusterType().GetName(); own != "" {
		kind = strings.TrimPrefix(own, "envoy.clusters.")
	}
	rule := fromPath(c.GetMetadata(), "destination-rule")
	return [][]string{{name.host, number(name.port), name.subset, name.direction, kind, r.status, rule}}
}

// extensionRows returns the row of an extension.
func extensionRows(r resource, _ bool) [][]string {
	return [][]string{{r.name, r.message.(*corev3.TypedExtensionConfig).GetTypedConfig().GetTypeUrl()}}
}

// number formats a number, of which 0 stands for none.
func number(n uint32) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(n), 10)
}

// fromPath returns the name of the object of a kind that metadata name as the origin, as in
// /apis/networking.istio.io/v1/namespaces/shop/virtual-service/catalog.
func fromPath(m *corev3.Metadata, kind string) string {
	words := strings.Split(m.GetFilterMetadata()["istio"].GetFields()["config"].GetStringValue(), "/")
	if n := len(words); n >= 4 && words[n-2] == kind && words[n-4] == "namespaces" {
		return words[n-1] + "." + words[n-3]
	}
	return ""
}

// endpointRows returns a row for each endpoint of a cluster.
func endpointRows(r resource, _ bool) (rows [][]string) {
	for _, l := range r.message.(*endpointv3.ClusterLoadAssignment).GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			status := ""
			if e.GetHealthStatus() != corev3.HealthStatus_UNKNOWN {
				status = e.GetHealthStatus().String()
			}
			at := joined(e.GetEndpoint().GetAddress())
			rows = append(rows, []string{at, status, r.checks[at], r.name})
		}
	}
	return rows
}

// joined formats an address in one text.
func joined(a *corev3.Address) string {
	host, port := hostPort(a)
	switch {
	case port == 0:
		return host
	case strings.Contains(host, ":"):
		return fmt.Sprintf("[%s]:%d", host, port)
	}
	return fmt.Sprintf("%s:%d", host, port)
}
