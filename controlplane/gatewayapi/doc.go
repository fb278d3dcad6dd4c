// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package gatewayapi turns the objects of the Gateway API, and Kubernetes'
// Ingress, into the Gateways, VirtualServices and DestinationRules that the rest
// of the control plane serves, and says what their status is. It is pure: what it
// needs to know beside the objects it asks functions for.
//
// What an object means is what the specification of the Gateway API says (release
// 1.6); names and annotations of the converted objects are Istio's.
//
//   - [Convert] converts everything; [View] converts only after changes that
//     something depended on, and tells which converted objects differ.
//   - [Merge] puts what is to be said of an object into the status that it has:
//     what other controllers said stays, and what says the same is not written.
package gatewayapi
