// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package authorization converts AuthorizationPolicies to filters of Envoy. It is pure.
//
// A rule is converted so that an ambiguous request is refused. What a rule that refuses requests
// matches is extended: to methods in another case, to hosts with a port, and to each value of a
// header that is sent several times. What a rule that allows requests matches is exact. For values
// that a rule excludes, such as those of notMethods, it is the other way round.
package authorization
