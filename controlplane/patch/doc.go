// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package patch applies EnvoyFilters to the configuration of proxies. It parses the patches of an
// object once, when a snapshot is built, selects those of a proxy, and applies them to resources
// after they were generated. The order, the matching and the merging of patches are those of Istio.
//
// A patch that Envoy would refuse, alone or in its result, is left out and reported as a problem of
// the object. All functions are pure and never modify their input.
package patch
