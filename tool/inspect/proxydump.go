// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
)

// maxNesting is how deep messages of a dump may be nested.
const maxNesting = 300

// resource is a resource of a proxy.
type resource struct {
	name    string
	message proto.Message
	// static is true for a resource of Envoy's bootstrap, or of another resource, that the control
	// plane does not send on its own.
	static bool
	// status is statusActive, or what Envoy does with one that is not in use.
	status string
	// checks are the results of the outlier detection of a running Envoy, by the address of an endpoint.
	checks map[string]string
}

// The states of a resource in an Envoy.
const (
	statusActive   = "ACTIVE"
	statusWarming  = "WARMING"
	statusDraining = "DRAINING"
)

// configuration is what a dump contains.
type configuration struct {
	from      string // where it comes from, for sentences
	resources map[string][]resource
	// unknown counts messages of unknown types, unread the resources that cannot be read, rejected
	// those that Envoy rejected or that are held back from it.
	unknown, unread, rejected int
}

// resolver finds the types of messages. Those that are not linked become messages without fields.
type resolver struct {
	*protoregistry.Types
	unknown int
}

// FindMessageByURL returns the type with a URL, and one without fields if it is unknown.
func (r *resolver) FindMessageByURL(at string) (protoreflect.MessageType, error) {
	found, err := r.Types.FindMessageByURL(at)
	if errors.Is(err, protoregistry.NotFound) {
		r.unknown++
		return (&corev3.AggregatedConfigSource{}).ProtoReflect().Type(), nil
	}
	return found, err
}

// readDump reads a dump of a control plane or of Envoy. Parts of other types, such as secrets and
// the bootstrap, are not read.
func readDump(raw []byte) (*configuration, error) {
	var dump struct {
		Configs []json.RawMessage `json:"configs"`
	}
	if err := json.Unmarshal(raw, &dump); err != nil {
		return nil, fmt.Errorf("it is not a config_dump in JSON: %w", err)
	}
	if dump.Configs == nil {
		return nil, errors.New(`it has no "configs": write what /config_dump or /debug/config_dump returned`)
	}
	c := &configuration{resources: map[string][]resource{}}
	for _, text := range dump.Configs {
		if err := c.read(text); err != nil {
			return nil, err
		}
	}
	c.addAssignments()
	return c, nil
}

// read adds one message of a dump.
func (c *configuration) read(text []byte) error {
	var typed struct {
		URL string `json:"@type"`
	}
	if err := json.Unmarshal(text, &typed); err != nil {
		return fmt.Errorf("it is not a config_dump: %w", err)
	}
	var m proto.Message
	switch name := (&anypb.Any{TypeUrl: typed.URL}).MessageName(); name {
	case "envoy.admin.v3.ClustersConfigDump":
		m = &adminv3.ClustersConfigDump{}
	case "envoy.admin.v3.ListenersConfigDump":
		m = &adminv3.ListenersConfigDump{}
	case "envoy.admin.v3.RoutesConfigDump":
		m = &adminv3.RoutesConfigDump{}
	case "envoy.admin.v3.EndpointsConfigDump":
		m = &adminv3.EndpointsConfigDump{}
	case "envoy.admin.v3.EcdsConfigDump":
		m = &adminv3.EcdsConfigDump{}
	default:
		if name.Parent() != "envoy.admin.v3" {
			c.unknown++
		}
		return nil
	}
	types := &resolver{Types: protoregistry.GlobalTypes}
	err := protojson.UnmarshalOptions{AllowPartial: true, DiscardUnknown: true, RecursionLimit: maxNesting, Resolver: types}.Unmarshal(text, m)
	if err != nil {
		return fmt.Errorf("read the part %s: %w", typed.URL, err)
	}
	c.unknown += types.unknown
	c.collect(m)
	return nil
}

// collect adds the resources of a message of a dump.
func (c *configuration) collect(m proto.Message) {
	switch d := m.(type) {
	case *adminv3.ClustersConfigDump:
		for _, s := range d.GetStaticClusters() {
			c.add("clusters", s.GetCluster(), true, statusActive)
		}
		for _, s := range d.GetDynamicActiveClusters() {
			c.refused(s.GetErrorState())
			c.add("clusters", s.GetCluster(), false, statusActive)
		}
		for _, s := range d.GetDynamicWarmingClusters() {
			if !c.refused(s.GetErrorState()) {
				c.add("clusters", s.GetCluster(), false, statusWarming)
			}
		}
	case *adminv3.ListenersConfigDump:
		for _, s := range d.GetStaticListeners() {
			c.add("listeners", s.GetListener(), true, statusActive)
		}
		for _, s := range d.GetDynamicListeners() {
			c.refused(s.GetErrorState())
			for _, state := range []struct {
				status string
				of     *adminv3.ListenersConfigDump_DynamicListenerState
			}{{statusDraining, s.GetDrainingState()}, {statusActive, s.GetActiveState()}, {statusWarming, s.GetWarmingState()}} {
				if state.of != nil {
					c.add("listeners", state.of.GetListener(), false, state.status)
				}
			}
		}
	case *adminv3.RoutesConfigDump:
		for _, s := range d.GetStaticRouteConfigs() {
			c.add("routes", s.GetRouteConfig(), true, statusActive)
		}
		for _, s := range d.GetDynamicRouteConfigs() {
			if !c.refused(s.GetErrorState()) || s.GetRouteConfig() != nil {
				c.add("routes", s.GetRouteConfig(), false, statusActive)
			}
		}
	case *adminv3.EndpointsConfigDump:
		for _, s := range d.GetStaticEndpointConfigs() {
			c.add("endpoints", s.GetEndpointConfig(), true, statusActive)
		}
		for _, s := range d.GetDynamicEndpointConfigs() {
			if !c.refused(s.GetErrorState()) || s.GetEndpointConfig() != nil {
				c.add("endpoints", s.GetEndpointConfig(), false, statusActive)
			}
		}
	case *adminv3.EcdsConfigDump:
		for _, s := range d.GetEcdsFilters() {
			if !c.refused(s.GetErrorState()) || s.GetEcdsFilter() != nil {
				c.add(extensions, s.GetEcdsFilter(), false, statusActive)
			}
		}
	}
}

// refused counts a resource with an error, and reports whether it has one.
func (c *configuration) refused(failure *adminv3.UpdateFailureState) bool {
	if failure == nil {
		return false
	}
	c.rejected++
	return true
}

// add adds a resource.
func (c *configuration) add(part string, packed *anypb.Any, static bool, status string) {
	m, err := packed.UnmarshalNew()
	if err != nil {
		c.unread++
		return
	}
	r := resource{message: m, static: static, status: status}
	fits := false
	switch m := m.(type) {
	case *clusterv3.Cluster:
		r.name, fits = m.GetName(), part == "clusters"
	case *listenerv3.Listener:
		r.name, fits = m.GetName(), part == "listeners"
	case *routev3.RouteConfiguration:
		r.name, fits = m.GetName(), part == "routes"
	case *endpointv3.ClusterLoadAssignment:
		r.name, fits = m.GetClusterName(), part == "endpoints"
	case *corev3.TypedExtensionConfig:
		r.name, fits = m.GetName(), part == extensions
	}
	if !fits {
		c.unread++
		return
	}
	c.resources[part] = append(c.resources[part], r)
}

// addAssignments adds the endpoints that are part of clusters. Envoy lists them with the others.
func (c *configuration) addAssignments() {
	listed := map[string]bool{}
	for _, r := range c.resources["endpoints"] {
		listed[r.name] = true
	}
	for _, r := range c.resources["clusters"] {
		cluster := r.message.(*clusterv3.Cluster)
		if assigned := cluster.GetLoadAssignment(); len(assigned.GetEndpoints()) > 0 && !listed[r.name] {
			assigned = proto.CloneOf(assigned)
			assigned.ClusterName = r.name
			c.resources["endpoints"] = append(c.resources["endpoints"], resource{name: r.name, message: assigned, static: true})
		}
	}
}

// askEnvoy asks the admin port of an Envoy for its configuration.
func askEnvoy(ctx context.Context, admin string, timeout time.Duration) (*configuration, error) {
	raw, err := askAdmin(ctx, admin, http.MethodGet, "/config_dump", "include_eds", timeout)
	if err != nil {
		return nil, err
	}
	c, err := readDump(raw)
	if err != nil {
		return nil, fmt.Errorf("the answer of %s: %w", admin, err)
	}
	c.from = "the Envoy at " + admin
	return c, nil
}

// askChecks asks the admin port of an Envoy for the results of its outlier detection.
func (c *configuration) askChecks(ctx context.Context, admin string, timeout time.Duration) error {
	raw, err := askAdmin(ctx, admin, http.MethodGet, "/clusters", "format=json", timeout)
	if err != nil {
		return err
	}
	list := &adminv3.Clusters{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true, RecursionLimit: maxNesting}).Unmarshal(raw, list); err != nil {
		return fmt.Errorf("the list of clusters of %s: %w", admin, err)
	}
	checks := map[string]map[string]string{} // by the name of the endpoints
	for _, cluster := range list.GetClusterStatuses() {
		name := cmp.Or(cluster.GetEdsServiceName(), cluster.GetName())
		if checks[name] == nil {
			checks[name] = map[string]string{}
		}
		for _, host := range cluster.GetHostStatuses() {
			at := joined(host.GetAddress())
			if host.GetHealthStatus().GetFailedOutlierCheck() {
				checks[name][at] = "FAILED"
			} else if checks[name][at] == "" { // another cluster may have the same endpoints
				checks[name][at] = "OK"
			}
		}
	}
	for i, r := range c.resources["endpoints"] {
		c.resources["endpoints"][i].checks = checks[r.name]
	}
	return nil
}

// askAdmin returns the answer of the admin port of an Envoy, or of the status port of an agent.
func askAdmin(ctx context.Context, admin, method, path, query string, timeout time.Duration) ([]byte, error) {
	whom, cure := "Envoy", "write the address of Envoy's admin port, as in 127.0.0.1:15000; for another machine: kubectl port-forward pod/POD 15000"
	if strings.HasPrefix(path, "/debug/") { // of an agent
		whom, cure = "the agent", "write the address of an agent's status port, as in 127.0.0.1:15020; for another machine: kubectl port-forward pod/POD 15020"
	}
	if _, _, err := net.SplitHostPort(admin); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", admin, err, cure)
	}
	u := url.URL{Scheme: "http", Host: admin, Path: path, RawQuery: query}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", admin, err, cure)
	}
	client := &http.Client{
		Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w: %s", whom, err, cure)
	}
	defer func() { _ = resp.Body.Close() }() // read-only: closing cannot lose data
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the answer of %s: %w", admin, err)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s returned %d: %s: %s", admin, resp.StatusCode, oneLine(string(raw[:min(len(raw), maxErrText)])), cure)
	case len(raw) > maxAnswer:
		return nil, fmt.Errorf("the answer of %s has more than %d bytes", admin, maxAnswer)
	}
	return raw, nil
}
