// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package authorization converts AuthorizationPolicies to filters of Envoy. It is pure.
//
// A rule is converted so that an ambiguous request is refused. What a rule that refuses requests
// matches is extended to what a server may take for it: methods and paths in another case, paths
// with parameters, with repeated or encoded slashes, with encoded letters, or with a dot segment
// that Envoy did not resolve, hosts with a port or in a list, each value of a header that is sent
// several times, and namespaces and service accounts of any trust domain. What a rule that allows
// requests matches is exact: each value of a header has to match, a wildcard does not match a path
// with a dot segment or an encoded slash in a segment, and namespaces and service accounts are those
// of the mesh's trust domains. For values that a rule excludes, such as those of notMethods, it is the
// other way round.
//
// Envoys before 1.38 compare the values of a header joined with commas, so that a prefix or suffix of
// the list is enough to allow. Paths are decoded once: an application that decodes them twice is not
// protected.
package authorization
