// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package gatewayapi converts the objects of the Gateway API and Kubernetes Ingresses to the
// Gateways, VirtualServices and DestinationRules that the rest of the control plane serves, and
// computes their status. The conversion is pure: it obtains all other information through
// functions.
//
// The meaning of an object is defined by the specification of the Gateway API (release 1.6). The
// names and annotations of converted objects are those of Istio.
//
//   - [Convert] converts all objects. [View] converts them again only after relevant changes,
//     and returns which converted objects differ.
//   - [Merge] merges a computed status into the stored one. Entries of other controllers stay,
//     and an unchanged status is not written.
package gatewayapi
