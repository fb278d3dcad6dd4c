// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package registry

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Platform runs services and workloads that no configuration object describes, for example in
// clusters. Implementations must be safe for concurrent use. The returned values are immutable.
type Platform interface {
	// Services returns all services in arbitrary order.
	Services() []*PlatformService
	// Service returns one service, or nil if it does not exist.
	Service(namespace, name string) *PlatformService
	// Pods returns the workloads of a namespace that can receive requests. If name is not empty, it
	// returns only the workload with that name.
	Pods(namespace, name string) []*Workload
}

// PlatformService is a service of a platform.
type PlatformService struct {
	// Name is the name of the service in its namespace on the platform.
	Name    string
	Service *model.Service
	// Targets are the target ports, one for each port of the service.
	Targets []TargetPort
	// Selector selects WorkloadEntry objects of the namespace; empty selects none.
	Selector map[string]string
	// Endpoints are sorted by [SortOfClusters].
	Endpoints []*model.Endpoint
	// Gateways are the gateways of networks that the service provides.
	Gateways []model.NetworkGateway
	Problems []model.Problem
}

// TargetPort is a port of a workload: either the name of a port in Workload.Ports, or a number.
type TargetPort struct {
	Name   string
	Number uint32
}

// Workload is a backend of services: a WorkloadEntry, a pod, or an inline endpoint of a
// ServiceEntry.
type Workload struct {
	// Object is the zero value for an inline endpoint of a ServiceEntry.
	Object  model.Key
	Source  string // location of the object, for messages
	Created time.Time
	Address string
	// Ports maps port names to numbers.
	Ports          map[string]uint32
	Labels         map[string]string
	Namespace      string
	ServiceAccount string
	Locality       string
	Cluster        string
	Network        string
	Node           string
	Weight         uint32
	MutualTLS      bool
}

// olderWorkload compares workloads of a namespace in the order of [model.Older].
func olderWorkload(a, b *Workload) int {
	return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Object.Name, b.Object.Name), strings.Compare(string(a.Object.Kind), string(b.Object.Kind)))
}

// SortEndpoints sorts endpoints by service port, address, port and network, and keeps the first of
// those that are equal in all four, because each address serves a port once. It modifies the list.
func SortEndpoints(list []*model.Endpoint) []*model.Endpoint {
	slices.SortStableFunc(list, compareEndpoints)
	return slices.CompactFunc(list, func(a, b *model.Endpoint) bool { return compareEndpoints(a, b) == 0 })
}

// SortOfClusters is like SortEndpoints, but for use before it is known which clusters share a
// network: it keeps endpoints with equal addresses in different clusters. Endpoints with equal
// addresses must be grouped by cluster. It modifies the list.
func SortOfClusters(list []*model.Endpoint) []*model.Endpoint {
	slices.SortStableFunc(list, compareEndpoints)
	return slices.CompactFunc(list, func(a, b *model.Endpoint) bool { return compareEndpoints(a, b) == 0 && a.Cluster == b.Cluster })
}

func compareEndpoints(a, b *model.Endpoint) int {
	return cmp.Or(
		cmp.Compare(a.ServicePort, b.ServicePort), cmp.Compare(a.Address, b.Address),
		cmp.Compare(a.Port, b.Port), cmp.Compare(a.Network, b.Network),
	)
}
