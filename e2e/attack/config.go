// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

// shop is the mesh that is attacked: pay and web are workloads of one
// namespace, and have a service each.
const shop = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: pay, namespace: shop}
spec:
  hosts: [pay.shop.svc.cluster.local]
  addresses: [10.96.0.1]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}]
  workloadSelector: {labels: {app: pay}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: pay, namespace: shop}
spec: {address: 10.0.0.1, serviceAccount: pay, labels: {app: pay}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.shop.svc.cluster.local]
  addresses: [10.96.0.2]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}]
  workloadSelector: {labels: {app: web}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: web, namespace: shop}
spec: {address: 10.0.0.2, serviceAccount: web, labels: {app: web}}
`
