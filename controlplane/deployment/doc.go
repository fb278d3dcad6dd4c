// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package deployment deploys the proxies of Gateways of the Gateway API: for each Gateway a
// ServiceAccount, a Deployment and a Service, with the names and labels of Istio's.
//
//   - [Render] returns the objects of a Gateway. It is pure.
//   - [Controller] keeps them in a cluster as rendered, while this replica leads. It writes only
//     objects that do not exist and those that it made for the same Gateway, and only after a change
//     of the Gateway, its ConfigMap or the object. Why a Gateway is not deployed is a
//     [gatewayapi.Fault], which its status shows.
//
// A Gateway with an address of the type Hostname, or with several addresses, is run by somebody
// else: see [gatewayapi.Manages]. Kubernetes removes the objects of a removed Gateway, which is their owner.
//
// Goroutines: Run of a Controller owns the workers. A queue holds each Gateway at most once.
package deployment
