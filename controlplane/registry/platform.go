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

// Platform is what runs services and workloads that no configuration object
// describes, such as clusters. It is safe for concurrent use, and what it gives
// is never written to.
type Platform interface {
	// Services returns all services, in no order.
	Services() []*PlatformService
	// Service returns one; nil means that there is none.
	Service(namespace, name string) *PlatformService
	// Pods returns the workloads of a namespace that take requests, or the one
	// of a name.
	Pods(namespace, name string) []*Workload
}

// PlatformService is a service of a platform.
type PlatformService struct {
	// Name is how the platform calls the service in its namespace.
	Name    string
	Service *model.Service
	// Targets are, for each of the service's ports, the port of a workload.
	Targets []TargetPort
	// Selector chooses WorkloadEntry objects of the namespace; empty chooses
	// none.
	Selector map[string]string
	// Endpoints are sorted by [SortOfClusters].
	Endpoints []*model.Endpoint
	// Gateways are the networks that the service is a gateway of.
	Gateways []model.NetworkGateway
	Problems []model.Problem
}

// TargetPort is a port of a workload: a name that the workload has a number for,
// or the number.
type TargetPort struct {
	Name   string
	Number uint32
}

// Workload is what can answer for services: a WorkloadEntry, a pod, or an
// endpoint that is written into a ServiceEntry.
type Workload struct {
	// Object is the zero value for an endpoint of a ServiceEntry.
	Object  model.Key
	Source  string // of the object, for messages
	Created time.Time
	Address string
	// Ports are its ports by name.
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

// olderWorkload orders the workloads of a namespace as [model.Older] does.
func olderWorkload(a, b *Workload) int {
	return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Object.Name, b.Object.Name), strings.Compare(string(a.Object.Kind), string(b.Object.Kind)))
}

// SortEndpoints sorts by service port, address and port, and keeps the first of
// those that are equal in all three and in the network: each address serves a
// port once. The list is altered.
func SortEndpoints(list []*model.Endpoint) []*model.Endpoint {
	slices.SortStableFunc(list, compareEndpoints)
	return slices.CompactFunc(list, func(a, b *model.Endpoint) bool { return compareEndpoints(a, b) == 0 })
}

// SortOfClusters is SortEndpoints before it is known which clusters are one
// network: it keeps equal addresses of several clusters. Those of a cluster come
// together.
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
