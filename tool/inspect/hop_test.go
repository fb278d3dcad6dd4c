// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import "github.com/outrigger-mesh/outrigger/controlplane/report"

// routedRequests returns a request that the proxy of the client splits, and one that no workload
// receives.
func routedRequests() []report.Decision {
	ref := func(kind, name string) report.Origin {
		return report.Origin{Ref: report.Ref{Kind: kind, Namespace: "shop", Name: name}, Source: "config/" + name + ".yaml:3"}
	}
	split := requests()[0]
	split.Client = &report.Hop{
		Proxy: "frontend-1.shop", Listener: "0.0.0.0_80", Routes: "80", VirtualHost: "catalog.shop.svc.cluster.local:80", Route: "split",
		Objects: []report.Origin{ref("VirtualService", "catalog")}, Timeout: "3s", Retries: 2,
		Destinations: []report.Destination{
			{Cluster: "outbound|80|v1|catalog.shop.svc.cluster.local", Percent: 90, Objects: []report.Origin{ref("DestinationRule", "catalog")}, Endpoints: []string{"10.0.0.7:8080", "10.0.0.8:8080"}, Healthy: 2, All: 3, MutualTLS: 1},
			{Cluster: "outbound|80|v2-with-a-long-name|reservations-and-payments.international-bookings.svc.cluster.local", Percent: 10, TLS: true, Endpoints: []string{"10.0.0.9:8080"}, Healthy: 1, All: 1},
		},
	}
	gone := report.Decision{
		Replica: "istiod-0", Proxy: "frontend-1.shop", Identity: "spiffe://cluster.local/ns/shop/sa/frontend", HTTP: true, Method: "GET", Path: "/", Host: "catalog.shop", By: "route", Status: 503,
		Reason: "no workload belongs to it", Client: &report.Hop{
			Proxy: "frontend-1.shop", Listener: "0.0.0.0_80", VirtualHost: "catalog.shop.svc.cluster.local:80",
			Destinations: []report.Destination{{Cluster: "outbound|80|v3|catalog.shop.svc.cluster.local", Percent: 100, Reason: "the proxy has no such cluster: the host, port or subset is unknown"}},
		},
	}
	return []report.Decision{split, gone}
}
