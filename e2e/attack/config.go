// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import "strings"

// shop returns the configuration of the attacked mesh: pay and web are workloads in the same
// namespace, with one service each.
func shop() string {
	return service("pay", "10.96.0.1", "10.0.0.1") + service("web", "10.96.0.2", "10.0.0.2")
}

// service returns a service in the namespace shop with one workload of the same name.
func service(name, virtual, address string) string {
	return strings.NewReplacer("NAME", name, "VIRTUAL", virtual, "ADDRESS", address).Replace(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: NAME, namespace: shop}
spec:
  hosts: [NAME.shop.svc.cluster.local]
  addresses: [VIRTUAL]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}]
  workloadSelector: {labels: {app: NAME}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: NAME, namespace: shop}
spec: {address: ADDRESS, serviceAccount: NAME, labels: {app: NAME}}
---
`)
}
