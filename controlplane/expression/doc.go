// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package expression reads the CEL expressions and the formats of logs and headers of users as a stock Envoy
// does.
//
// An Envoy refuses a whole listener with an expression that calls a function which it does not have,
// so [Check] finds such expressions first. The names of attributes differ between versions of Envoy
// and are not checked: an unknown one has no value. The package is pure.
package expression
